package node

import (
	"crypto/sha256"
	"encoding/base64"

	"penstock/internal/node/fold"
)

// ProducerOwner returns what stands for an identity that a client has proved; "" is that of clients that have to prove
// nothing. A producer's name belongs to the owner that opens it: see OwnedName.
func ProducerOwner(identity string) string {
	sum := sha256.Sum256([]byte("penstock owner of producers\x00" + identity))
	return string(rune(fold.OwnerMark)) + base64.RawURLEncoding.EncodeToString(sum[:(fold.OwnerBytes-1)*3/4])
}

// OwnedName returns the name for OpenProducer, OpenNamed, HoldProducer, HoldNamed and Numbered of a producer whose
// client has this owner. Whoever opens a name in a partition where it belongs to another owner, or sends a message of
// it, gets ErrProducerOwner. A name that was opened without an owner is everybody's. The result is no longer than
// MaxProducerNameBytes: a longer one has a digest in place of the name. No name stays none.
func OwnedName[T string | []byte](owner string, name T) T {
	switch {
	case owner == "" || len(name) == 0:
		return name
	case len(owner)+len(name) > fold.MaxProducerNameBytes:
		sum := sha256.Sum256([]byte(name))
		return T(owner + base64.RawURLEncoding.EncodeToString(sum[:]))
	}
	return T(append([]byte(owner), name...))
}
