package aio

// Stage gathers bytes for consecutive aligned writes to a file. It belongs to one goroutine.
type Stage struct {
	File File
	Buf  []byte // aligned
	Off  int64  // file offset of Buf[0], aligned
	N    int    // bytes gathered
}

// Add gathers p, and writes the buffer whenever it is full.
func (s *Stage) Add(p []byte) error {
	for len(p) > 0 {
		k := copy(s.Buf[s.N:], p)
		if s.N, p = s.N+k, p[k:]; s.N == len(s.Buf) {
			if err := s.File.WriteAt(s.Buf, s.Off); err != nil {
				return err
			}
			s.Off, s.N = s.Off+int64(s.N), 0
		}
	}
	return nil
}

// Finish writes the remaining bytes, padded with zeros to whole blocks.
func (s *Stage) Finish(block int64) error {
	if s.N == 0 {
		return nil
	}
	padded := int(RoundUp(int64(s.N), block))
	clear(s.Buf[s.N:padded])
	return s.File.WriteAt(s.Buf[:padded], s.Off)
}

// RoundUp rounds to a multiple of unit, a power of two.
func RoundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }
