package batch

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// The zstd coders are shared: EncodeAll and DecodeAll are safe for concurrent use and keep their own pools of state.
// The decoder's memory limit bounds what a hostile body can inflate to.
var (
	zstdEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	})
	zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxBatchBytes), zstd.WithDecoderConcurrency(0))
	})
	// zstdWithin writes into the memory that it is given, and never beyond its end.
	zstdWithin = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxBatchBytes), zstd.WithDecoderConcurrency(0),
			zstd.WithDecodeAllCapLimit(true))
	})
)

// compressBody appends room for a header and then the compressed body to dst.
func compressBody(c Codec, dst, body []byte) ([]byte, error) {
	var room [HeaderBytes]byte
	dst = append(dst, room[:]...)
	switch c {
	case CodecS2:
		need := HeaderBytes + s2.MaxEncodedLen(len(body))
		if cap(dst) < need {
			dst = make([]byte, HeaderBytes, need)
		}
		n := len(s2.Encode(dst[HeaderBytes:need], body))
		return dst[:HeaderBytes+n], nil
	case CodecZstd:
		enc, err := zstdEncoder()
		if err != nil {
			return nil, fmt.Errorf("batch: zstd: %w", err)
		}
		return enc.EncodeAll(body, dst), nil
	}
	return nil, fmt.Errorf("batch: codec %d is unknown; the batch was not sealed", c)
}

// DecompressBody returns the records of a verified body: the body itself if it is stored uncompressed, else bytes
// decompressed into scratch. If scratch is too small, a larger buffer is allocated; pass the result again to reuse it.
// MaxBatchBytes bounds the result, whatever size the body claims. Errors are ErrInvalid.
func DecompressBody(h *Header, body, scratch []byte) ([]byte, error) {
	switch h.Codec {
	case CodecNone:
		return body, nil
	case CodecS2:
		n, err := s2.DecodedLen(body)
		if err != nil || n > MaxBatchBytes {
			return nil, fmt.Errorf("%w: s2 body claims %d bytes (%v)", ErrInvalid, n, err)
		}
		out, err := s2.Decode(scratch[:cap(scratch)], body)
		if err != nil {
			return nil, fmt.Errorf("%w: s2: %w", ErrInvalid, err)
		}
		return out, nil
	case CodecZstd:
		dec, err := zstdDecoder()
		if err != nil {
			return nil, fmt.Errorf("batch: zstd: %w", err)
		}
		out, err := dec.DecodeAll(body, scratch[:0])
		if err != nil {
			return nil, fmt.Errorf("%w: zstd: %w", ErrInvalid, err)
		}
		if len(out) > MaxBatchBytes {
			return nil, fmt.Errorf("%w: zstd body of more than %d bytes", ErrInvalid, MaxBatchBytes)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%w: codec %d", ErrInvalid, h.Codec)
}

const (
	// MaxInflationRatio is by how much a node lets a compressed body grow, beyond FreeInflationBytes, unless its setting
	// says otherwise. Ordinary messages compress by less.
	MaxInflationRatio = 256
	// FreeInflationBytes is the size up to which a body may grow whatever its ratio is.
	FreeInflationBytes = 64 << 10
)

// mayInflate says whether a body of packed bytes may become one of plain bytes.
func mayInflate(packed, plain, ratio int) bool { return plain <= MostInflated(packed, ratio) }

// MostInflated is how many bytes a body of packed bytes may become.
func MostInflated(packed, ratio int) int {
	return int(min(FreeInflationBytes+int64(ratio)*int64(packed), MaxBatchBytes))
}

// InflatedBytes returns how many bytes a body becomes, as it says itself, before anything is decompressed. stated is
// false if it does not say. DecompressWithin holds it to that.
func InflatedBytes(h *Header, body []byte) (n int, stated bool, err error) {
	switch h.Codec {
	case CodecNone:
		return len(body), true, nil
	case CodecS2:
		n, err := s2.DecodedLen(body)
		if err != nil || n > MaxBatchBytes {
			return 0, false, fmt.Errorf("%w: s2 body claims %d bytes (%v)", ErrInvalid, n, err)
		}
		return n, true, nil
	case CodecZstd:
		var frame zstd.Header
		if err := frame.Decode(body); err != nil {
			return 0, false, fmt.Errorf("%w: zstd: %w", ErrInvalid, err)
		}
		if frame.HasFCS && frame.FrameContentSize > MaxBatchBytes {
			return 0, false, fmt.Errorf("%w: zstd body claims %d bytes", ErrInvalid, frame.FrameContentSize)
		}
		return int(frame.FrameContentSize), frame.HasFCS, nil
	}
	return 0, false, fmt.Errorf("%w: codec %d", ErrInvalid, h.Codec)
}

// DecompressWithin is DecompressBody for a body that was not judged before: it becomes at most so many bytes, and no
// more memory than that is allocated.
func DecompressWithin(h *Header, body, scratch []byte, most int) ([]byte, error) {
	if h.Codec != CodecZstd {
		return DecompressBody(h, body, scratch) // S2 allocates what InflatedBytes has returned
	}
	dec, err := zstdWithin()
	if err != nil {
		return nil, fmt.Errorf("batch: zstd: %w", err)
	}
	if cap(scratch) < most {
		scratch = make([]byte, 0, most)
	}
	out, err := dec.DecodeAll(body, scratch[:0:most])
	if err != nil {
		return nil, fmt.Errorf("%w: zstd, within %d bytes: %w", ErrInvalid, most, err)
	}
	return out, nil
}
