package segment

// HeldFile is a segment file that HoldFiles found. Until Release, a cut of the log does not overwrite the file: the log
// continues in a copy of it, as it does for readers. Its holder may give the file one more name, and removes that name
// before Release. Appends do not mind that name. Repairs of damaged ranges go to a copy, as for any file that has a
// second name.
type HeldFile struct {
	Path string // relative to the data directory
	FileStart
	// End is where the file's batches end, as far as they are written and synced.
	End Offset
	// Full says that another segment follows, and that all batches of this one are written and synced.
	Full bool
	// Bytes is the size of the file's beginning that has its header and everything below End.
	Bytes int64

	file *segFile
}

// Release ends the hold.
func (h *HeldFile) Release() {
	h.file.holds.Add(-1)
	h.file.release()
}

// HoldFiles calls visit for every segment file, oldest first. While it runs nobody writes, renames or removes a file of
// the log. visit owns the HeldFile and releases it, at the latest when it returns an error, which HoldFiles returns.
// Files of which no byte can be read (SegmentInfo.Err) are left out. It returns ErrClosed if the log is closed. It
// takes l.io and l.mu, and holds only l.io during visit.
func (l *Log) HoldFiles(visit func(*HeldFile) error) error {
	l.io.Lock()
	defer l.io.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	held := make([]*HeldFile, 0, len(l.segs))
	for i, f := range l.segs {
		if f.broken != nil {
			continue
		}
		end := max(min(l.segmentEnd(i), l.synced), f.first)
		f.pin()
		f.holds.Add(1)
		held = append(held, &HeldFile{
			Path: f.path, FileStart: f.place(), End: end, Full: i+1 < len(l.segs) && end == l.segs[i+1].base,
			Bytes: f.at(end), file: f,
		})
	}
	l.mu.Unlock()
	for i, h := range held {
		if err := visit(h); err != nil {
			for _, rest := range held[i+1:] {
				rest.Release()
			}
			return err
		}
	}
	return nil
}
