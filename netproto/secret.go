package netproto

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
)

// Secret is a key that all sides of a cluster have. With it they prove to each other in the handshake that they belong
// together:
//
//	side that connected                             side that accepts
//	1 Hello, which requires FeatureProof,
//	  with a nonce                                  2 Challenge: another nonce
//	3 Proof: MAC(dialer, Hello, Challenge)          4 compares; only now looks at who the peer says it is
//	                                                  HelloAck, with MAC(acceptor, Hello, Challenge, HelloAck)
//	5 compares; only now looks at HelloAck
//
// MAC is HMAC-SHA-256 under the secret. Both nonces are in both proofs, so a proof that was recorded is worth nothing
// in another handshake. The labels differ, so a proof that is sent back to its maker proves nothing. Each proof covers
// all that its maker said about itself. A side that accepts shows nothing of itself before the proof, and a stranger
// never gets a MAC to try passwords on.
//
// The secret authenticates; it does not encrypt, and whoever can change bytes on the way can change them after the
// handshake. Where that is possible, use TLS.
type Secret [32]byte

const (
	labelDialer   = "penstock handshake 1: dialer"
	labelAcceptor = "penstock handshake 1: acceptor"
)

// mac is the proof of one side. hello and ack are the payloads of those frames, ack without its proof; of the side that
// connected, ack is nil.
func (s *Secret) mac(label string, hello, challenge, ack []byte) (proof [authBytes]byte) {
	m := hmac.New(sha256.New, s[:])
	var size [4]byte
	for _, part := range [][]byte{[]byte(label), hello, challenge, ack} {
		binary.LittleEndian.PutUint32(size[:], uint32(len(part)))
		m.Write(size[:])
		m.Write(part)
	}
	m.Sum(proof[:0])
	return proof
}

// proven says whether proof was made with one of the secrets. It takes the same time for every wrong proof.
func proven(secrets []Secret, proof []byte, label string, hello, challenge, ack []byte) bool {
	ok := false
	for i := range secrets {
		want := secrets[i].mac(label, hello, challenge, ack)
		if hmac.Equal(proof, want[:]) {
			ok = true
		}
	}
	return ok
}

func (o *Options) secrets() []Secret {
	if o.Secrets == nil {
		return nil
	}
	return o.Secrets()
}

// demandProof makes the Hello say that its side has a secret. Auth is random: a nonce, or what the proof will replace.
func (h *Hello) demandProof() {
	h.Features |= FeatureProof
	h.Required |= FeatureProof
	_, _ = rand.Read(h.Auth[:]) // it never fails
}

func unproven(text string, peer *Hello) error {
	return &RefusedError{Status: StatusUnproven, Text: text, Peer: *peer}
}

// prove answers the Challenge of the side that accepts. It returns the Challenge.
func prove(nc net.Conn, secret *Secret, hello []byte) ([]byte, error) {
	h, challenge, err := readFrame(nc)
	if err != nil {
		return nil, err
	}
	if h.Type == TypeHelloAck {
		return nil, answeredAtOnce(&h, challenge)
	}
	if h.Type != TypeChallenge || len(challenge) < authBytes {
		return nil, fmt.Errorf("%w: a %v of %d bytes where a %v must come", ErrInvalid, h.Type, len(challenge), TypeChallenge)
	}
	proof := secret.mac(labelDialer, hello, challenge, nil)
	return challenge, writeFrame(nc, TypeProof, StatusOK, proof[:])
}

// answeredAtOnce is the error when the side that accepts answers without a Challenge.
func answeredAtOnce(h *Header, payload []byte) error {
	peer, err := ParseHello(payload)
	switch {
	case err != nil:
		return err
	case h.Status == StatusVersionMismatch:
		// It may be of an older version, for which FeatureProof is an unknown number.
		return unproven("the peer said \""+peer.Text+"\": it has no secret, or is of a version that knows none; give every "+
			"node the same secret", &peer)
	case h.Status != StatusOK:
		return &RefusedError{Status: h.Status, Text: peer.Text, Peer: peer}
	}
	return unproven("the peer accepts the connection without a proof, and gives none", &peer)
}

// challenge makes a peer prove that it has one of the secrets. It returns the Challenge.
func challenge(nc net.Conn, secrets []Secret, peer *Hello, hello []byte) ([]byte, error) {
	if peer.Features&FeatureProof == 0 {
		return nil, unproven("the cluster's secret is required here, and the peer has none; give every node the same secret",
			peer)
	}
	nonce := make([]byte, authBytes)
	_, _ = rand.Read(nonce)
	if err := writeFrame(nc, TypeChallenge, StatusOK, nonce); err != nil {
		return nil, err
	}
	h, proof, err := readFrame(nc)
	if err != nil {
		return nil, err
	}
	if h.Type != TypeProof || len(proof) < authBytes {
		return nil, fmt.Errorf("%w: a %v of %d bytes where a %v must come", ErrInvalid, h.Type, len(proof), TypeProof)
	}
	if !proven(secrets, proof[:authBytes], labelDialer, hello, nonce, nil) {
		return nil, unproven("the peer has another secret; give every node the same secret", peer)
	}
	return nonce, nil
}

// sealAck makes the payload of a HelloAck, and with a secret puts its proof there.
func sealAck(answer *Hello, secrets []Secret, hello, challenge []byte) []byte {
	p := answer.AppendTo(nil)
	if len(secrets) == 0 {
		return p
	}
	body := p[:len(p)-authBytes]
	proof := secrets[0].mac(labelAcceptor, hello, challenge, body)
	return append(body, proof[:]...)
}

// checkAck checks the proof in a HelloAck.
func checkAck(secrets []Secret, peer *Hello, hello, challenge, ack []byte) error {
	if peer.Features&FeatureProof == 0 {
		return unproven("the peer accepts the connection without a proof", peer)
	}
	// Whatever a later version puts behind the proof is not covered by it.
	if !proven(secrets, peer.Auth[:], labelAcceptor, hello, challenge, ack[:authOffset(ack)]) {
		return unproven("the peer does not prove that it has the cluster's secret; give every node the same secret", peer)
	}
	return nil
}
