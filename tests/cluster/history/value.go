package history

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// MinBodyBytes is the smallest body that Body makes for names of up to 16 bytes.
const MinBodyBytes = 48

const sumDigits = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Body is the message body of value seq of a client, at least sizeBytes long: it names its value and ends in a checksum
// over all before, so that every body is unique and a changed byte shows.
func Body(client string, seq uint64, sizeBytes int) []byte {
	b := make([]byte, 0, max(sizeBytes, MinBodyBytes))
	b = append(b, client...)
	b = append(b, '/')
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, '/')
	for x := seq*0x9e3779b97f4a7c15 + 1; len(b) < sizeBytes-sumDigits; x = x*6364136223846793005 + 1442695040888963407 {
		b = append(b, 'a'+byte(x>>59)%26)
	}
	return fmt.Appendf(b, "%08x", crc32.Checksum(b, castagnoli))
}

// ParseBody returns the value of a body that Body made; ok is false for any other bytes.
func ParseBody(body []byte) (client string, seq uint64, ok bool) {
	if len(body) < sumDigits {
		return "", 0, false
	}
	data, sum := body[:len(body)-sumDigits], string(body[len(body)-sumDigits:])
	if fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli)) != sum {
		return "", 0, false
	}
	client, rest, ok := strings.Cut(string(data), "/")
	if !ok {
		return "", 0, false
	}
	digits, _, ok := strings.Cut(rest, "/")
	if !ok {
		return "", 0, false
	}
	seq, err := strconv.ParseUint(digits, 10, 64)
	return client, seq, err == nil
}

// partitionShift is where an id carries its partition: the upper 16 bits. Ids of one partition rise with its log.
const partitionShift = 48

// Partition returns the partition of a message id.
func Partition(message uint64) uint32 { return uint32(message >> partitionShift) }
