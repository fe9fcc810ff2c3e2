package handshakes

import (
	"crypto"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"strconv"
	"time"
)

// Secret is what the keys of session tickets come from. It comes from the key of the certificate, so a ticket is good
// after a restart, when all clients come back, and at all nodes that have the same certificate.
type Secret [sha256.Size]byte

// SecretOf returns the secret of a certificate's key.
func SecretOf(key crypto.PrivateKey) (s Secret, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return s, err
	}
	b, err := hkdf.Key(sha256.New, der, nil, "penstock 1 session tickets", len(s))
	copy(s[:], b)
	return s, err
}

// Keys returns the keys of that day, with which tickets are made, and of the day before. A ticket is good for one day
// at least and two at most.
func (s *Secret) Keys(now time.Time) [][32]byte {
	day := now.Unix() / (24 * 60 * 60)
	keys := make([][32]byte, 2)
	for i := range keys {
		b, err := hkdf.Expand(sha256.New, s[:], "penstock 1 session tickets of day "+strconv.FormatInt(day-int64(i), 10),
			len(keys[i]))
		if err != nil {
			panic(fmt.Sprintf("BUG: a key of 32 bytes cannot be derived: %v", err))
		}
		copy(keys[i][:], b)
	}
	return keys
}
