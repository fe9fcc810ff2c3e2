package netproto

import (
	"bytes"
	"errors"
	"flag"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"penstock/tests/support/formattest"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

func TestFormatTables(t *testing.T) {
	found := formattest.Tables(t)
	formattest.Layout(t, found["Frame header, layout 1"], HeaderBytes,
		offMagic, offVersion, offType, offFlags, offHead, offStatus, offStream, offPayloadBytes, offRequest,
		offPayloadCRC, offHeaderCRC)
	formattest.Layout(t, found["Hello and HelloAck"], helloFixedBytes,
		offCluster, offStore, offBoot, offFeatures, offRequired, offMaxFrame, offWindow, offMinVersion, offMaxVersion,
		offChosen, offRole, offNodeIDBytes, offTextBytes, offHelloReserved)
	formattest.Numbers(t, found["Limits"], map[string]int{
		"HeaderBytes": HeaderBytes, "MaxFrameBytes": MaxFrameBytes, "DefaultMaxFrameBytes": DefaultMaxFrameBytes,
		"MaxHelloBytes": MaxHelloBytes, "MinMaxFrameBytes": MinMaxFrameBytes, "MaxHeadBytes": MaxHeadBytes,
		"MaxNodeIDBytes": MaxNodeIDBytes, "MaxTextBytes": MaxTextBytes, "AuthBytes": authBytes,
	})
}

func TestFormatNumbers(t *testing.T) {
	found := formattest.Tables(t)
	for _, row := range found["Types"] {
		n, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		if Type(n).String() != row[1] {
			t.Errorf("type %d is %q, the code says %q", n, row[1], Type(n))
		}
		if ofConnection := n <= 5 || n == 7 || n == 8; Type(n).ofConnection() != ofConnection {
			t.Errorf("%s: the code says of the connection: %v", row[1], !ofConnection)
		}
	}
	if n := len(found["Types"]); n != len(typeNames) {
		t.Errorf("%d types, the code has %d", n, len(typeNames))
	}
	for i, row := range found["Statuses"] {
		if row[0] != strconv.Itoa(i) || row[1] != Status(i).String() {
			t.Errorf("status %s is %q, row %d; the code says %q", row[0], row[1], i, Status(i))
		}
	}
	if n := len(found["Statuses"]); n != statusCount {
		t.Errorf("%d statuses, the code has %d", n, statusCount)
	}
	if got := Type(200).String() + ", " + Status(999).String(); got != "type 200, status 999" {
		t.Error(got)
	}
}

var (
	testCluster = ID{0: 0xC1, 15: 0x01}
	testStore   = ID{0: 0x57, 15: 0x02}
	testBoot    = ID{0: 0xB0, 15: 0x03}
)

func testHello(node string) Hello {
	return Hello{
		Role: RoleNode, Cluster: testCluster, Store: testStore, Boot: testBoot, NodeID: node,
		MinVersion: 1, MaxVersion: 1, MaxFrameBytes: DefaultMaxFrameBytes, WindowBytes: 1 << 20,
	}
}

// frameBytes is the frame as Send would write it.
func frameBytes(t *testing.T, f *Frame) []byte {
	t.Helper()
	h, err := f.header()
	if err != nil {
		t.Fatal(err)
	}
	d := new(drain)
	d.add(f, &h)
	defer d.reset()
	return bytes.Join(d.pieces, nil)
}

func rawFrame(h Header, payload []byte) []byte {
	h.PayloadBytes = uint32(len(payload))
	h.PayloadCRC = crc32.Checksum(payload[:h.CheckedBytes()], castagnoli)
	p := make([]byte, HeaderBytes, HeaderBytes+len(payload))
	h.Marshal(p)
	return append(p, payload...)
}

func controlBytes(typ Type, status Status, request uint64, text string) []byte {
	d := new(drain)
	d.control(typ, status, request, text)
	defer d.reset()
	return bytes.Join(d.pieces, nil)
}

func TestGoldenFrames(t *testing.T) {
	hello, ack, refusal, client := testHello("n1"), testHello("n2"), testHello("n2"), Hello{
		Role: RoleClient, MinVersion: 1, MaxVersion: 3, MaxFrameBytes: MinMaxFrameBytes, Features: 5, Required: 4,
	}
	ack.Chosen = 1
	proofHello, proofAck, stranger := hello, ack, hello.anonymous("give every node the same secret")
	for _, h := range []*Hello{&proofHello, &proofAck} {
		h.Features, h.Required = FeatureProof, FeatureProof
	}
	proofHello.Auth = [authBytes]byte{0: 0xD1, 31: 0xA1}
	nonce := bytes.Repeat([]byte{0xC4}, authBytes)
	said := proofHello.AppendTo(nil)
	proof := testSecret.mac(labelDialer, said, nonce, nil)
	refusal.Text = "no common protocol version"
	for name, frame := range map[string][]byte{
		"hello":        rawFrame(Header{Type: TypeHello}, hello.AppendTo(nil)),
		"hello-client": rawFrame(Header{Type: TypeHello}, client.AppendTo(nil)),
		"helloack":     rawFrame(Header{Type: TypeHelloAck}, ack.AppendTo(nil)),
		"refusal":      rawFrame(Header{Type: TypeHelloAck, Status: StatusVersionMismatch}, refusal.AppendTo(nil)),
		// what nodes with a secret say; the proofs are those of testSecret
		"hello-secret":     rawFrame(Header{Type: TypeHello}, said),
		"challenge":        rawFrame(Header{Type: TypeChallenge}, nonce),
		"proof":            rawFrame(Header{Type: TypeProof}, proof[:]),
		"helloack-secret":  rawFrame(Header{Type: TypeHelloAck}, sealAck(&proofAck, []Secret{testSecret}, said, nonce)),
		"refusal-unproven": rawFrame(Header{Type: TypeHelloAck, Status: StatusUnproven}, stranger.AppendTo(nil)),

		"ping":    controlBytes(TypePing, StatusOK, 7, ""),
		"pong":    controlBytes(TypePong, StatusOK, 7, ""),
		"goodbye": controlBytes(TypeGoodbye, StatusClosed, 0, "closed"),
		"error": frameBytes(t, &Frame{
			Type: TypeError, Status: StatusRejected, Request: 9, Head: []byte("unknown type"),
		}),
		"ack": frameBytes(t, &Frame{
			Type: TypePutAck, Status: StatusGap, Stream: 0x01020304, Request: 0x1122334455667788, Head: []byte("position"),
		}),
		"put": frameBytes(t, &Frame{
			Type: TypePutMessagesOnReplica, Flags: FlagSelfChecked, Stream: 3, Request: 41,
			Head: []byte("placement + mark"), Body: [][]byte{[]byte("batch one "), []byte("batch two")},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			golden := formattest.Golden(t, filepath.Join("testdata", name+".hex"), frame, *update)
			h, err := ParseHeader(golden)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.checkPayload(golden[HeaderBytes:]); err != nil {
				t.Fatal(err)
			}
			again := make([]byte, HeaderBytes)
			if h.Marshal(again); !bytes.Equal(again, golden[:HeaderBytes]) {
				t.Fatalf("read and written again it is\n%s", formattest.HexLines(again))
			}
			if h.Type == TypeHello || h.Type == TypeHelloAck {
				hello, err := ParseHello(golden[HeaderBytes:])
				if err != nil {
					t.Fatal(err)
				}
				if p := hello.AppendTo(nil); !bytes.Equal(p, golden[HeaderBytes:]) {
					t.Fatalf("read and written again it is\n%s", formattest.HexLines(p))
				}
			}
		})
	}
}

// Every bit of a header is covered by the checksum, and each rule that a checksum cannot cover is tested by name.
func TestHeaderDamage(t *testing.T) {
	good := frameBytes(t, &Frame{Type: TypeForwardPut, Stream: 1, Request: 2, Head: []byte("x")})
	for bit := range HeaderBytes * 8 {
		p := bytes.Clone(good)
		p[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseHeader(p); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	}
	for n := range HeaderBytes {
		if _, err := ParseHeader(good[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes of a header: %v", n, err)
		}
	}
	if _, err := ParseHeader(make([]byte, HeaderBytes)); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("zeros: %v", err)
	}
	for _, c := range []struct {
		name string
		edit func([]byte)
		want error
	}{
		{"type 0", func(p []byte) { p[offType] = 0 }, ErrInvalid},
		{"unknown flag", func(p []byte) { p[offFlags] = 2 }, ErrInvalid},
		{"head without flag", func(p []byte) { p[offHead] = 1 }, ErrInvalid},
		{"head longer than payload", func(p []byte) { p[offFlags], p[offHead] = 1, 1 }, ErrInvalid},
		{"self-checked ping", func(p []byte) { p[offFlags], p[offType] = 1, byte(TypePing) }, ErrInvalid},
		{"4 GiB", func(p []byte) { copy(p[offPayloadBytes:], "\xff\xff\xff\xff") }, ErrTooBig},
		{"layout 2", func(p []byte) { p[offVersion] = 2 }, ErrVersion},
	} {
		p := bytes.Clone(good)
		c.edit(p)
		reseal(p)
		if _, err := ParseHeader(p); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// reseal corrects the checksum of an edited header.
func reseal(p []byte) {
	crc := crc32.Checksum(p[:offHeaderCRC], castagnoli)
	p[28], p[29], p[30], p[31] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
}

func TestHelloBounds(t *testing.T) {
	good := testHello("n1")
	good.Text = "why"
	p := good.AppendTo(nil)
	if h, err := ParseHello(append(bytes.Clone(p), "what a later version adds"...)); err != nil || h != good {
		t.Errorf("with an extension: %+v, %v", h, err)
	}
	for n := range p {
		if _, err := ParseHello(p[:n]); !errors.Is(err, ErrInvalid) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := ParseHello(make([]byte, MaxHelloBytes)); !errors.Is(err, ErrInvalid) {
		t.Errorf("too long: %v", err)
	}
	for name, edit := range map[string]func([]byte){
		"role 0":           func(p []byte) { p[offRole] = 0 },
		"no cluster":       func(p []byte) { clear(p[offCluster : offCluster+16]) },
		"no store":         func(p []byte) { clear(p[offStore : offStore+16]) },
		"no boot":          func(p []byte) { clear(p[offBoot : offBoot+16]) },
		"no node id":       func(p []byte) { p[offNodeIDBytes] = 0 },
		"blank in node id": func(p []byte) { p[helloFixedBytes] = ' ' },
		"version 0":        func(p []byte) { p[offMinVersion] = 0 },
		"max below min":    func(p []byte) { p[offMinVersion] = 9 },
		"tiny frames":      func(p []byte) { clear(p[offMaxFrame : offMaxFrame+4]) },
		"huge frames":      func(p []byte) { p[offMaxFrame+3] = 0xff },
		"unmet by itself":  func(p []byte) { p[offRequired] = 1 },
		"reserved":         func(p []byte) { p[offHelloReserved] = 1 },
		"endless text":     func(p []byte) { p[offTextBytes+1] = 0xff },
	} {
		q := bytes.Clone(p)
		edit(q)
		if _, err := ParseHello(q); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := testHello(strings.Repeat("n", MaxNodeIDBytes+1))
	if err := long.validate(); !errors.Is(err, ErrInvalid) {
		t.Errorf("long node id: %v", err)
	}
	// Text from a peer goes into logs: the peer must not be able to write log lines of its own.
	evil := append([]byte(nil), p...)
	copy(evil[len(evil)-3:], "a\n\x1b")
	if h, err := ParseHello(evil); err != nil || h.Text != "a??" {
		t.Errorf("text %q, %v", h.Text, err)
	}
}

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		name     string
		edit     func(self, peer *Hello)
		want     Version
		mismatch bool
	}{
		{"equal", func(_, _ *Hello) {}, 1, false},
		{"newer self", func(self, _ *Hello) { self.MaxVersion = 3 }, 1, false},
		{"newer both", func(self, peer *Hello) { self.MaxVersion, peer.MaxVersion = 3, 2 }, 2, false},
		{"peer too new", func(_, peer *Hello) { peer.MinVersion, peer.MaxVersion = 2, 3 }, 0, true},
		{"self too new", func(self, _ *Hello) { self.MinVersion, self.MaxVersion = 2, 3 }, 0, true},
		{"feature both have", func(self, peer *Hello) { self.Features, self.Required, peer.Features = 3, 2, 2 }, 1, false},
		{"peer lacks a feature", func(self, _ *Hello) { self.Features, self.Required = 2, 2 }, 0, true},
		{"self lacks a feature", func(_, peer *Hello) { peer.Features, peer.Required = 2, 2 }, 0, true},
	} {
		self, peer := testHello("n1"), testHello("n2")
		c.edit(&self, &peer)
		v, err := negotiate(&self, &peer)
		if v != c.want || errors.Is(err, ErrVersion) != c.mismatch {
			t.Errorf("%s: %d, %v", c.name, v, err)
		}
		if w, err2 := negotiate(&peer, &self); w != v || (err == nil) != (err2 == nil) {
			t.Errorf("%s: the other side finds %d, %v", c.name, w, err2)
		}
	}
}
