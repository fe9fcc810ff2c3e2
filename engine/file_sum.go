package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"strings"

	"penstock/segment/aio"
)

// node.json and topic.json end with a checksum of what is before it:
//
//	{
//	  "format": 3,
//	  …
//	  "crc32c": "9a71bb4c"
//	}
//
// It is the CRC-32C of the file as it would be without that field: the closing brace and its newline included. Versions that do not
// know the field ignore it, and write the file without it. A file without it is read strictly, so that one changed bit in the name of the field
// does not pass for its absence. Files edited by hand need the line removed.
//
// Each of the two has a second copy beside it, written after it: node.copy.json and topic.copy.json. A damaged file is replaced by
// its copy when the node starts; a copy that differs (a crash between the two writes, an older version) is written anew from the file.

const (
	sumPrefix = ",\n  \"crc32c\": \""
	sumSuffix = "\"\n}\n"
	sumDigits = 8
	fileEnd   = "\n}\n"
)

// errFileDamaged says that a file of the catalog is not what was written.
var errFileDamaged = errors.New("its checksum does not match: the file is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func copyOf(name string) string { return strings.TrimSuffix(name, ".json") + ".copy.json" }

// writeTwice makes a file and its copy durable, in this order. A crash leaves both old, or one of each.
func writeTwice(disk aio.Disk, name string, v any) error {
	data, err := sealFile(v)
	if err != nil {
		return err
	}
	if err := disk.WriteFile(name, data); err != nil {
		return err
	}
	return disk.WriteFile(copyOf(name), data)
}

// readTwice gives a file's bytes to unseal, or those of its copy where the file cannot be read or unseal finds damage in it. Whichever of
// the two is bad or behind is written anew; mended says that one was damaged. A file that does not exist is told as such: its copy alone means nothing.
func readTwice(disk aio.Disk, log *slog.Logger, name string, unseal func(data []byte) error) (mended bool, err error) {
	data, err := disk.ReadFile(name, maxMetaBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil {
		err = unseal(data)
	}
	second, err2 := disk.ReadFile(copyOf(name), maxMetaBytes)
	switch {
	case err == nil && (err2 != nil || !bytes.Equal(data, second)):
		if _, summed, bad := splitSum(second); err2 == nil && (bad != nil || !summed) ||
			err2 != nil && !errors.Is(err2, fs.ErrNotExist) {
			log.Warn("the second copy of a file of the data directory was damaged; nothing is lost: it is written anew",
				"file", copyOf(name))
			mended = true
		}
		return mended, disk.WriteFile(copyOf(name), data)
	case err == nil || err2 != nil || errors.Is(err, ErrNewerLevel) || unseal(second) != nil:
		return false, err
	}
	log.Warn("a file of the data directory was damaged; nothing is lost: its second copy is whole and has replaced it",
		"file", name, "error", err)
	return true, disk.WriteFile(name, second)
}

// sealFile is v as a file with its checksum.
func sealFile(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	data = append(data, '\n')
	sum := crc32.Checksum(data, castagnoli)
	data = append(bytes.TrimSuffix(data, []byte(fileEnd)), sumPrefix...)
	return append(fmt.Appendf(data, "%0*x", sumDigits, sum), sumSuffix...), nil
}

// unsealFile fills v from a file that sealFile wrote. check judges what was read, before a field that this version does not know is an error: a
// newer version is told as such.
func unsealFile(data []byte, v any, check func() error) error {
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

// splitSum takes the checksum off, if there is one, and checks it.
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
