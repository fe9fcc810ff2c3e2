package netproto

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const (
	// HeaderBytes is the size of every frame's header.
	HeaderBytes = 32
	// MaxFrameBytes bounds any frame, header included. A Hello may set a lower limit (DefaultMaxFrameBytes).
	MaxFrameBytes = 64 << 20
	// MaxHeadBytes bounds the head of a self-checked frame.
	MaxHeadBytes = headUnitBytes * 255
	// FrameVersion is the version of the header's layout. Hello, HelloAck and Goodbye keep this layout for ever, so
	// that any two versions can tell each other that they do not match.
	FrameVersion = 1

	headUnitBytes = 8
	frameMagic    = 'P' | 'N'<<8
)

// Offsets in the header; FORMAT.md has the table.
const (
	offMagic        = 0
	offVersion      = 2
	offType         = 3
	offFlags        = 4
	offHead         = 5
	offStatus       = 6
	offStream       = 8
	offPayloadBytes = 12
	offRequest      = 16
	offPayloadCRC   = 24
	offHeaderCRC    = 28
)

// Flags of a frame. Unknown bits are refused, so a new flag needs a feature bit in Hello.
type Flags uint8

const (
	// FlagSelfChecked: the bytes after the head carry their own checksums (sealed batches do), so the frame's checksum
	// covers only the head and nothing is hashed twice. The receiver must verify the rest before using it.
	FlagSelfChecked Flags = 1 << 0

	knownFlags = FlagSelfChecked
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the fixed part of a frame. The frame's type defines what Stream and Request mean.
type Header struct {
	Type         Type
	Flags        Flags
	Status       Status
	Stream       uint32 // a partition handle, or a request channel
	Request      uint64 // an answer repeats the Request of its request
	HeadBytes    uint16 // in a self-checked frame, the bytes that PayloadCRC covers, a multiple of 8; else 0
	PayloadBytes uint32
	PayloadCRC   uint32 // CRC-32C of the payload, or of the head in a self-checked frame
}

// CheckedBytes is how many bytes PayloadCRC covers, from the beginning of the payload.
func (h *Header) CheckedBytes() int {
	if h.Flags&FlagSelfChecked != 0 {
		return int(h.HeadBytes)
	}
	return int(h.PayloadBytes)
}

// Marshal writes the header, with its checksum, to dst[:HeaderBytes].
func (h *Header) Marshal(dst []byte) {
	le := binary.LittleEndian
	_ = dst[HeaderBytes-1]
	le.PutUint16(dst[offMagic:], frameMagic)
	dst[offVersion] = FrameVersion
	dst[offType] = byte(h.Type)
	dst[offFlags] = byte(h.Flags)
	dst[offHead] = byte(h.HeadBytes / headUnitBytes)
	le.PutUint16(dst[offStatus:], uint16(h.Status))
	le.PutUint32(dst[offStream:], h.Stream)
	le.PutUint32(dst[offPayloadBytes:], h.PayloadBytes)
	le.PutUint64(dst[offRequest:], h.Request)
	le.PutUint32(dst[offPayloadCRC:], h.PayloadCRC)
	le.PutUint32(dst[offHeaderCRC:], crc32.Checksum(dst[:offHeaderCRC], castagnoli))
}

// ParseHeader reads and verifies the header in src[:HeaderBytes]. ErrCorrupt: the bytes are not a header, and it is
// unknown where the next frame begins. ErrVersion: the header has another layout. ErrInvalid: the header is intact but
// not allowed. ErrTooBig: the payload is larger than MaxFrameBytes-HeaderBytes. The caller checks a stricter limit if
// it has one.
func ParseHeader(src []byte) (Header, error) {
	le := binary.LittleEndian
	if len(src) < HeaderBytes {
		return Header{}, fmt.Errorf("%w: %d bytes are less than a header", ErrCorrupt, len(src))
	}
	if m := le.Uint16(src[offMagic:]); m != frameMagic {
		return Header{}, fmt.Errorf("%w: no frame begins here, the first bytes are %#04x", ErrCorrupt, m)
	}
	if got, want := le.Uint32(src[offHeaderCRC:]), crc32.Checksum(src[:offHeaderCRC], castagnoli); got != want {
		return Header{}, fmt.Errorf("%w: the header's checksum is %#08x, its bytes give %#08x", ErrCorrupt, got, want)
	}
	if v := src[offVersion]; v != FrameVersion {
		return Header{}, fmt.Errorf("%w: a frame of layout %d, this side knows %d", ErrVersion, v, FrameVersion)
	}
	h := Header{
		Type: Type(src[offType]), Flags: Flags(src[offFlags]), Status: Status(le.Uint16(src[offStatus:])),
		Stream: le.Uint32(src[offStream:]), Request: le.Uint64(src[offRequest:]),
		HeadBytes:    uint16(src[offHead]) * headUnitBytes,
		PayloadBytes: le.Uint32(src[offPayloadBytes:]), PayloadCRC: le.Uint32(src[offPayloadCRC:]),
	}
	return h, h.validate()
}

func (h *Header) validate() error {
	switch {
	case h.Type == 0:
		return fmt.Errorf("%w: type 0", ErrInvalid)
	case h.Flags&^knownFlags != 0:
		return fmt.Errorf("%w: unknown flags %#02x in a %v", ErrInvalid, h.Flags, h.Type)
	case h.PayloadBytes > MaxFrameBytes-HeaderBytes:
		return fmt.Errorf("%w: a %v of %d bytes, at most %d are allowed",
			ErrTooBig, h.Type, h.PayloadBytes, MaxFrameBytes-HeaderBytes)
	case h.Flags&FlagSelfChecked == 0 && h.HeadBytes != 0:
		return fmt.Errorf("%w: a head of %d bytes in a %v whose checksum covers everything", ErrInvalid, h.HeadBytes, h.Type)
	case uint32(h.HeadBytes) > h.PayloadBytes:
		return fmt.Errorf("%w: a head of %d bytes in a payload of %d", ErrInvalid, h.HeadBytes, h.PayloadBytes)
	case h.Flags&FlagSelfChecked != 0 && h.Type.ofConnection():
		return fmt.Errorf("%w: a %v without a checksum", ErrInvalid, h.Type)
	}
	return nil
}

// checkPayload verifies the bytes that PayloadCRC covers. payload has PayloadBytes bytes.
func (h *Header) checkPayload(payload []byte) error {
	if got := crc32.Checksum(payload[:h.CheckedBytes()], castagnoli); got != h.PayloadCRC {
		return fmt.Errorf("%w: the payload's checksum of a %v is %#08x, its bytes give %#08x; nothing of it was used",
			ErrCorrupt, h.Type, h.PayloadCRC, got)
	}
	return nil
}
