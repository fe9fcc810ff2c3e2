package datadir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"strings"

	"penstock/internal/meta"
	"penstock/segment/aio"
)

// node.json and topic.json end with a checksum of the content before it:
//
//	{
//	  "format": 3,
//	  …
//	  "crc32c": "9a71bb4c"
//	}
//
// The checksum is the CRC-32C of the file without this field, including the closing brace and its newline. Versions
// that do not know the field ignore it, and write the file without it. A file without the field is decoded strictly, so
// that a flipped bit in the name of the field is not taken for its absence. A person who edits a file must remove the
// line with the field.
//
// Each of the two files has a second copy, which is written after the file: node.copy.json and topic.copy.json. When
// the node starts, it replaces a damaged file by its copy, and rewrites a copy that differs from its file. A copy
// differs after a crash between the two writes, or after a run of an older version.

const (
	sumPrefix = ",\n  \"crc32c\": \""
	sumSuffix = "\"\n}\n"
	sumDigits = 8
	fileEnd   = "\n}\n"
)

// errFileDamaged says that a file of the catalog does not match its checksum.
var errFileDamaged = errors.New("its checksum does not match: the file is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CopyOf returns the name of a file's second copy.
func CopyOf(name string) string { return strings.TrimSuffix(name, ".json") + ".copy.json" }

// WriteTwice durably writes a file, and then its copy. A crash leaves the old file with the old copy, or the new file
// with the old copy, or both new.
func WriteTwice(disk aio.Disk, name string, v any) error {
	data, err := writeOnce(disk, name, v)
	if err != nil {
		return err
	}
	return disk.WriteFile(CopyOf(name), data)
}

// writeOnce durably writes a file and not its copy, for a caller that calls WriteTwice soon. Until then it is as after
// a crash between the two writes.
func writeOnce(disk aio.Disk, name string, v any) ([]byte, error) {
	data, err := SealFile(v)
	if err != nil {
		return nil, err
	}
	return data, disk.WriteFile(name, data)
}

// ReadTwice passes the bytes of the file to unseal. If the file cannot be read, or unseal finds it damaged, ReadTwice
// passes the bytes of the copy. It then rewrites the one that is damaged or out of date; mended says that one was
// damaged. If the file does not exist, ReadTwice returns that error, because a copy alone means nothing.
func ReadTwice(disk aio.Disk, log *slog.Logger, name string, unseal func(data []byte) error) (mended bool, err error) {
	data, err := disk.ReadFile(name, MaxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil {
		err = unseal(data)
	}
	second, err2 := disk.ReadFile(CopyOf(name), MaxFileBytes)
	switch {
	case err == nil && (err2 != nil || !bytes.Equal(data, second)):
		if _, summed, bad := splitSum(second); err2 == nil && (bad != nil || !summed) ||
			err2 != nil && !errors.Is(err2, fs.ErrNotExist) {
			log.Warn("the second copy of a file of the data directory was damaged; nothing is lost: it is written anew",
				"file", CopyOf(name))
			mended = true
		}
		return mended, disk.WriteFile(CopyOf(name), data)
	case err == nil || err2 != nil || errors.Is(err, meta.ErrNewerLevel) || unseal(second) != nil:
		return false, err
	}
	log.Warn("a file of the data directory was damaged; nothing is lost: its second copy is whole and has replaced it",
		"file", name, "error", err)
	return true, disk.WriteFile(name, second)
}

// SealFile encodes v as a file with a checksum.
func SealFile(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	data = append(data, '\n')
	sum := crc32.Checksum(data, castagnoli)
	data = append(bytes.TrimSuffix(data, []byte(fileEnd)), sumPrefix...)
	return append(fmt.Appendf(data, "%0*x", sumDigits, sum), sumSuffix...), nil
}

// UnsealFile decodes the output of SealFile into v. It calls check to validate v before it refuses unknown fields, so
// that a file of a newer version gives the error of check.
func UnsealFile(data []byte, v any, check func() error) error {
	plain, summed, err := splitSum(data)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(plain, v); err != nil {
		return err
	}
	if err := check(); err != nil || summed {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(plain))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// splitSum verifies the checksum, if there is one, and returns the file without it. summed says that there is one.
func splitSum(data []byte) (plain []byte, summed bool, err error) {
	at := len(data) - len(sumPrefix) - sumDigits - len(sumSuffix)
	if at < 0 || !bytes.HasPrefix(data[at:], []byte(sumPrefix)) || !bytes.HasSuffix(data, []byte(sumSuffix)) {
		return data, false, nil
	}
	plain = append(bytes.Clone(data[:at]), fileEnd...)
	digits := data[at+len(sumPrefix):][:sumDigits]
	if !bytes.Equal(digits, fmt.Appendf(nil, "%0*x", sumDigits, crc32.Checksum(plain, castagnoli))) {
		return nil, true, errFileDamaged
	}
	return plain, true, nil
}
