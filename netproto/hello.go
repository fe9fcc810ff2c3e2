package netproto

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Version defines the meaning of the payloads of all frames after the handshake.
type Version uint16

// Features is a set of bits. Each bit is something that a node of the same Version may or may not have.
type Features uint64

// FeatureProof says that a side has a secret. It always requires the feature, too, so that a peer without a secret, of
// an older version for example, refuses the connection and is refused. Connect and Accept set it, see Options.Secrets.
const FeatureProof Features = 1 << 8

// Role says what kind of peer a Hello comes from.
type Role uint8

// Roles. Zero is invalid.
const (
	RoleNode   Role = 1 // a node of the cluster: has cluster, store, boot and node id
	RoleClient Role = 2 // a native client: ids may be zero
)

// ID is a random 16-byte identity, such as a UUID. Zero: none.
type ID [16]byte

// String is the id in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

const (
	// MaxHelloBytes bounds a Hello or HelloAck, header included. So it bounds what is read from a peer before it has
	// said who it is.
	MaxHelloBytes = 4 << 10
	// MaxNodeIDBytes bounds a node's id.
	MaxNodeIDBytes = 64
	// MaxTextBytes bounds the text of a refusal and of a Goodbye.
	MaxTextBytes = 512
	// MinMaxFrameBytes is the lowest limit for frames that a side may set.
	MinMaxFrameBytes = MaxHelloBytes

	helloFixedBytes = 88
	// authBytes is the length of a nonce, and of a proof.
	authBytes = 32
)

// Offsets in the payload of Hello and HelloAck; FORMAT.md has the table.
const (
	offCluster       = 0
	offStore         = 16
	offBoot          = 32
	offFeatures      = 48
	offRequired      = 56
	offMaxFrame      = 64
	offWindow        = 68
	offMinVersion    = 72
	offMaxVersion    = 74
	offChosen        = 76
	offRole          = 78
	offNodeIDBytes   = 79
	offTextBytes     = 80
	offHelloReserved = 82
)

// Hello is what a side says about itself.
type Hello struct {
	Role    Role
	Cluster ID
	Store   ID     // of the data directory: another Store means that this node's replicas are empty
	Boot    ID     // of the process: another Boot means that everything the old process had in memory is gone
	NodeID  string // at most MaxNodeIDBytes bytes from ! to ~

	MinVersion, MaxVersion Version
	Features               Features // the features that this side has
	Required               Features // the features that the peer must have; a subset of Features

	MaxFrameBytes uint32 // the longest frame that this side accepts, header included; MinMaxFrameBytes .. MaxFrameBytes
	WindowBytes   uint32 // unanswered bytes of frames that this side is ready to hold for the peer

	Chosen Version // HelloAck only: the version both sides will speak; 0 if refused
	Text   string  // HelloAck only: why the Hello was refused, at most MaxTextBytes

	// Auth is there if Features has FeatureProof: a nonce in a Hello, the proof in a HelloAck.
	Auth [authBytes]byte
}

func (h *Hello) validate() error {
	switch {
	case h.Role != RoleNode && h.Role != RoleClient:
		return fmt.Errorf("%w: a hello of role %d", ErrInvalid, h.Role)
	case h.Role == RoleNode && (h.NodeID == "" || h.Cluster == ID{} || h.Store == ID{} || h.Boot == ID{}):
		return fmt.Errorf("%w: a node must name its cluster, store, boot and node id", ErrInvalid)
	case !ValidNodeID(h.NodeID):
		return fmt.Errorf("%w: node id %q; at most %d printable ASCII characters without blanks are allowed",
			ErrInvalid, clip(h.NodeID, MaxNodeIDBytes), MaxNodeIDBytes)
	case h.MinVersion == 0 || h.MinVersion > h.MaxVersion:
		return fmt.Errorf("%w: versions %d to %d", ErrInvalid, h.MinVersion, h.MaxVersion)
	case h.Required&^h.Features != 0:
		return fmt.Errorf("%w: it requires features %#x that it does not have", ErrInvalid, uint64(h.Required&^h.Features))
	case h.MaxFrameBytes < MinMaxFrameBytes || h.MaxFrameBytes > MaxFrameBytes:
		return fmt.Errorf("%w: a limit of %d bytes for frames, %d to %d are allowed",
			ErrInvalid, h.MaxFrameBytes, MinMaxFrameBytes, MaxFrameBytes)
	case len(h.Text) > MaxTextBytes:
		return fmt.Errorf("%w: a text of %d bytes, at most %d are allowed", ErrInvalid, len(h.Text), MaxTextBytes)
	}
	return nil
}

// ValidNodeID says whether a node may have this id. The empty id is valid only for clients.
func ValidNodeID(id string) bool {
	for i := range len(id) {
		if id[i] < '!' || id[i] > '~' {
			return false
		}
	}
	return len(id) <= MaxNodeIDBytes
}

// AppendTo appends the payload of a Hello or HelloAck. It panics if a field is out of bounds.
func (h *Hello) AppendTo(dst []byte) []byte {
	if err := h.validate(); err != nil {
		panic("BUG: netproto: own hello: " + err.Error())
	}
	le := binary.LittleEndian
	var p [helloFixedBytes]byte
	copy(p[offCluster:], h.Cluster[:])
	copy(p[offStore:], h.Store[:])
	copy(p[offBoot:], h.Boot[:])
	le.PutUint64(p[offFeatures:], uint64(h.Features))
	le.PutUint64(p[offRequired:], uint64(h.Required))
	le.PutUint32(p[offMaxFrame:], h.MaxFrameBytes)
	le.PutUint32(p[offWindow:], h.WindowBytes)
	le.PutUint16(p[offMinVersion:], uint16(h.MinVersion))
	le.PutUint16(p[offMaxVersion:], uint16(h.MaxVersion))
	le.PutUint16(p[offChosen:], uint16(h.Chosen))
	p[offRole] = byte(h.Role)
	p[offNodeIDBytes] = byte(len(h.NodeID))
	le.PutUint16(p[offTextBytes:], uint16(len(h.Text)))
	dst = append(dst, p[:]...)
	dst = append(dst, h.NodeID...)
	dst = append(dst, h.Text...)
	if h.Features&FeatureProof != 0 {
		dst = append(dst, h.Auth[:]...)
	}
	return dst
}

// ParseHello reads the payload of a Hello or HelloAck. It ignores bytes after the parts it knows: a later version may
// put more there, within MaxHelloBytes.
func ParseHello(p []byte) (Hello, error) {
	le := binary.LittleEndian
	if len(p) < helloFixedBytes || len(p) > MaxHelloBytes-HeaderBytes {
		return Hello{}, fmt.Errorf("%w: a hello of %d bytes, %d to %d are allowed",
			ErrInvalid, len(p), helloFixedBytes, MaxHelloBytes-HeaderBytes)
	}
	h := Hello{
		Role: Role(p[offRole]), Cluster: ID(p[offCluster:]), Store: ID(p[offStore:]), Boot: ID(p[offBoot:]),
		MinVersion: Version(le.Uint16(p[offMinVersion:])), MaxVersion: Version(le.Uint16(p[offMaxVersion:])),
		Chosen:   Version(le.Uint16(p[offChosen:])),
		Features: Features(le.Uint64(p[offFeatures:])), Required: Features(le.Uint64(p[offRequired:])),
		MaxFrameBytes: le.Uint32(p[offMaxFrame:]), WindowBytes: le.Uint32(p[offWindow:]),
	}
	for _, b := range p[offHelloReserved:helloFixedBytes] {
		if b != 0 {
			return Hello{}, fmt.Errorf("%w: reserved bytes of a hello are not zero", ErrInvalid)
		}
	}
	idBytes, textBytes := int(p[offNodeIDBytes]), int(le.Uint16(p[offTextBytes:]))
	rest := p[helloFixedBytes:]
	if idBytes+textBytes > len(rest) {
		return Hello{}, fmt.Errorf("%w: a hello ends before its node id and text", ErrInvalid)
	}
	h.NodeID = string(rest[:idBytes])
	h.Text = printable(rest[idBytes : idBytes+textBytes])
	if h.Features&FeatureProof != 0 {
		auth := p[authOffset(p):]
		if len(auth) < authBytes {
			return Hello{}, fmt.Errorf("%w: a hello ends before its nonce or proof", ErrInvalid)
		}
		h.Auth = [authBytes]byte(auth)
	}
	return h, h.validate()
}

// negotiate returns the version that both sides will speak. Its error is meant for the side that connected.
func negotiate(self, peer *Hello) (Version, error) {
	v := min(self.MaxVersion, peer.MaxVersion)
	if v < self.MinVersion || v < peer.MinVersion {
		return 0, fmt.Errorf("%w: one side speaks %d to %d, the other %d to %d; upgrade the older one",
			ErrVersion, peer.MinVersion, peer.MaxVersion, self.MinVersion, self.MaxVersion)
	}
	if missing := peer.Required&^self.Features | self.Required&^peer.Features; missing != 0 {
		return 0, fmt.Errorf("%w: one side requires features %#x that the other does not have; upgrade the older one",
			ErrVersion, uint64(missing))
	}
	return v, nil
}

// sameCluster checks that the two may talk: nodes only within one cluster, and a client that names a cluster only with
// that cluster.
func sameCluster(self, peer *Hello) error {
	if self.Cluster == peer.Cluster || self.Role == RoleClient && self.Cluster == (ID{}) ||
		peer.Role == RoleClient && peer.Cluster == (ID{}) {
		return nil
	}
	told := &RefusedError{
		Status: StatusWrongCluster, Text: "the two belong to different clusters; correct the address or the configuration",
		Peer: *peer,
	}
	return fmt.Errorf("%w: this node (%s) is of %v, the peer (%s) of %v",
		told, strconv.Quote(self.NodeID), self.Cluster, strconv.Quote(peer.NodeID), peer.Cluster)
}

// authOffset is where Auth begins in a payload that ParseHello took.
func authOffset(p []byte) int {
	return helloFixedBytes + int(p[offNodeIDBytes]) + int(binary.LittleEndian.Uint16(p[offTextBytes:]))
}

// anonymous is what a refusal says about this side: nothing that a stranger could use. Its role is the one that needs
// no identities, so that older versions can read it.
func (h *Hello) anonymous(text string) Hello {
	return Hello{
		Role: RoleClient, MinVersion: h.MinVersion, MaxVersion: h.MaxVersion,
		MaxFrameBytes: h.MaxFrameBytes, WindowBytes: h.WindowBytes, Text: text,
	}
}

// printable makes text from a peer fit for a log: it replaces everything but printable ASCII by '?' and limits the
// length.
func printable(p []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(p[:min(len(p), MaxTextBytes)]))
}

func clip(s string, maxBytes int) string { return s[:min(len(s), maxBytes)] }
