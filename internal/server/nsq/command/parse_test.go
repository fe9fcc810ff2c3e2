package command

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"penstock/internal/server/publish"
	"penstock/tests/support/nsqtest"
)

var testLimits = Limits{MaxMessageBytes: 1 << 20, MaxBodyBytes: 5 << 20, MaxRdyCount: 2500, MaxDeferMillis: 3600000}

func newParser(ph Phase) *Parser { return &Parser{Limits: testLimits, Phase: ph, Heartbeats: true} }

const someID = "0123456789abcdef"

// parsed returns a command as text, for tables.
func (c *Command) describe() string {
	s := c.Verb.String()
	for _, p := range [][]byte{c.Topic, c.Channel, c.ID} {
		if p != nil {
			s += fmt.Sprintf(" %q", p)
		}
	}
	if c.Number != 0 {
		s += fmt.Sprintf(" %d", c.Number)
	}
	if c.Body != nil {
		s += fmt.Sprintf(" body %q", c.Body)
	}
	return s
}

// parseAll passes the input to the parser in pieces of step bytes, and returns the results, one per line.
func parseAll(p *Parser, input string, step int) string {
	var out []string
	var cmd Command
	b := []byte(input)
	for at, end := 0, 0; ; {
		n, f := p.Next(b[at:end], &cmd)
		switch {
		case f != nil:
			out = append(out, "fault "+f.Text)
			return strings.Join(out, "\n")
		case n > 0:
			out = append(out, cmd.describe())
			at += n
		case end == len(b):
			if at < end {
				out = append(out, fmt.Sprintf("%d bytes left", end-at))
			}
			return strings.Join(out, "\n")
		default:
			end = min(end+step, len(b))
		}
	}
}

func TestParse(t *testing.T) {
	long := strings.Repeat("a", 65)
	for _, x := range []struct {
		in   string
		want string
		ph   Phase
	}{
		{"NOP\nNOP\r\nPUB t\r\n" + nsqtest.Sized("x"), "NOP\nNOP\nPUB \"t\" body \"x\"", PhaseInit},
		{"PUB t extra\n" + nsqtest.Sized("\n\n"), `PUB "t" body "\n\n"`, PhaseInit},
		{"PUB\n", "fault E_INVALID PUB insufficient number of parameters", PhaseInit},
		{"PUB \n", `fault E_BAD_TOPIC PUB topic name "" is not valid`, PhaseInit},
		{"PUB a:b\n", `fault E_BAD_TOPIC PUB topic name "a:b" is not valid`, PhaseInit},
		{"PUB t\n" + nsqtest.U32(0), "fault E_BAD_MESSAGE PUB invalid message body size 0", PhaseInit},
		{"PUB t\n" + nsqtest.U32(-1), "fault E_BAD_MESSAGE PUB invalid message body size -1", PhaseInit},
		{
			"PUB t\n" + nsqtest.U32(math.MaxInt32),
			"fault E_BAD_MESSAGE PUB message too big 2147483647 > 1048576",
			PhaseInit,
		},
		{"PUB t\n" + nsqtest.U32(1<<20) + "abc", "13 bytes left", PhaseInit},
		{"PUB t\n\x00\x00", "8 bytes left", PhaseInit},
		{"PUB " + long + "\n", `fault E_BAD_TOPIC PUB topic name "` + long + `" is not valid`, PhaseInit},
		{"PUB t#ephemeral\n" + nsqtest.Sized("x"), `PUB "t#ephemeral" body "x"`, PhaseInit},

		{"DPUB t 1200\n" + nsqtest.Sized("x"), `DPUB "t" 1200 body "x"`, PhaseClosing},
		{"DPUB t\n", "fault E_INVALID DPUB insufficient number of parameters", PhaseInit},
		{"DPUB a:b x\n", `fault E_BAD_TOPIC DPUB topic name "a:b" is not valid`, PhaseInit},
		{"DPUB t x\n", "fault E_INVALID DPUB could not parse timeout x", PhaseInit},
		{"DPUB t -1\n", "fault E_INVALID DPUB could not parse timeout -1", PhaseInit},
		{"DPUB t 3600001\n", "fault E_INVALID DPUB timeout 3600001 out of range 0-3600000", PhaseInit},
		{
			"DPUB t 99999999999999999999999999\n",
			"fault E_INVALID DPUB timeout 18446744073709551615 out of range 0-3600000",
			PhaseInit,
		},
		{
			"DPUB t 18446744073709551616\n",
			"fault E_INVALID DPUB timeout 18446744073709551615 out of range 0-3600000",
			PhaseInit,
		},
		{
			"DPUB t 1\n" + nsqtest.U32(1<<20+1), "fault E_BAD_MESSAGE DPUB message too big 1048577 > 1048576",
			PhaseInit,
		},

		{"SUB t ch\n", `SUB "t" "ch"`, PhaseInit},
		{"SUB\n", "fault E_INVALID SUB insufficient number of parameters", PhaseInit},
		{"SUB t\n", "fault E_INVALID SUB insufficient number of parameters", PhaseInit},
		{"SUB t \n", `fault E_BAD_CHANNEL SUB channel name "" is not valid`, PhaseInit},
		{"SUB t:x ch\n", `fault E_BAD_TOPIC SUB topic name "t:x" is not valid`, PhaseInit},
		{"SUB t c*\n", `fault E_BAD_CHANNEL SUB channel name "c*" is not valid`, PhaseInit},
		{"SUB t ch\n", "fault E_INVALID cannot SUB in current state", PhaseSubscribed},

		{"RDY\nRDY 0\nRDY 2500\n", "RDY 1\nRDY\nRDY 2500", PhaseSubscribed},
		{"RDY 2501\n", "fault E_INVALID RDY count 2501 out of range 0-2500", PhaseSubscribed},
		{"RDY x\n", "fault E_INVALID RDY could not parse count x", PhaseSubscribed},
		{"RDY x\n", "RDY 1", PhaseClosing}, // ignored after CLS, even if invalid
		{"RDY 1\n", "fault E_INVALID cannot RDY in current state", PhaseInit},
		{"CLS\n", "CLS", PhaseSubscribed},
		{"CLS\n", "fault E_INVALID cannot CLS in current state", PhaseClosing},
		{"CLS\n", "fault E_INVALID cannot CLS in current state", PhaseInit},

		{"IDENTIFY\n" + nsqtest.Sized("{}"), `IDENTIFY body "{}"`, PhaseInit},
		{"IDENTIFY\n" + nsqtest.U32(0), "fault E_BAD_BODY IDENTIFY invalid body size 0", PhaseInit},
		{
			"IDENTIFY\n" + nsqtest.U32(5<<20+1), "fault E_BAD_BODY IDENTIFY body too big 5242881 > 5242880",
			PhaseInit,
		},
		{"IDENTIFY\n", "fault E_INVALID cannot IDENTIFY in current state", PhaseSubscribed},
		{"AUTH\n" + nsqtest.Sized("s"), `AUTH body "s"`, PhaseInit},
		{"AUTH x\n", "fault E_INVALID AUTH invalid number of parameters", PhaseInit},
		{"AUTH\n", "fault E_INVALID cannot AUTH in current state", PhaseSubscribed},

		{"BLAH a\n", "fault E_INVALID invalid command BLAH", PhaseInit},
		{"\n", "fault E_INVALID invalid command ", PhaseInit},
		{"pub x\n", "fault E_INVALID invalid command pub", PhaseInit},
		{" NOP\n", "fault E_INVALID invalid command ", PhaseInit},
		{strings.Repeat("x", MaxLineBytes), "fault ", PhaseInit},
		{"FIN " + someID + " " + strings.Repeat("x", MaxLineBytes), "fault ", PhaseSubscribed},
		{strings.Repeat("x", MaxLineBytes-1), "16383 bytes left", PhaseInit},
	} {
		for _, step := range []int{1, 3, len(x.in)} {
			if got := parseAll(newParser(x.ph), x.in, step); got != x.want {
				t.Errorf("%.60q in steps of %d:\n got %s\nwant %s", x.in, step, got, x.want)
			}
		}
	}
}

// B95
func TestParseIDs(t *testing.T) {
	withLF := "\x00\x01\n345 789\nbcde\n"
	for _, x := range []struct{ in, want string }{
		{"FIN " + someID + "\n", `FIN "0123456789abcdef"`},
		{"FIN " + someID + "\r\nNOP\n", "FIN \"0123456789abcdef\"\nNOP"},
		{"TOUCH " + someID + " x\n", `TOUCH "0123456789abcdef"`},
		{"REQ " + someID + " 1500\n", `REQ "0123456789abcdef" 1500`},
		{"REQ " + someID + " \n", `REQ "0123456789abcdef"`},
		{"REQ " + someID + " 99999999999999999999\n", `REQ "0123456789abcdef" 18446744073709551615`},
		{"FIN " + withLF + "\nNOP\n", fmt.Sprintf("FIN %q\nNOP", withLF)},
		{"REQ " + withLF + " 7\r\nNOP\n", fmt.Sprintf("REQ %q 7\nNOP", withLF)},
		{"FIN a\rb3456789abcdef\nNOP\n", "FIN \"a\\rb3456789abcdef\"\nNOP"},
		{"FIN\n", "fault E_INVALID FIN insufficient number of params"},
		{"FIN \n", "fault E_INVALID invalid message ID"},
		{"FIN 123\n", "fault E_INVALID invalid message ID"},
		{"FIN 123\r\n", "fault E_INVALID invalid message ID"},
		{"FIN " + someID + "0\n", "fault E_INVALID invalid message ID"},
		{"TOUCH\n", "fault E_INVALID TOUCH insufficient number of params"},
		{"REQ " + someID + "\n", "fault E_INVALID REQ insufficient number of params"},
		{"REQ " + someID + " x\n", "fault E_INVALID REQ could not parse timeout x"},
		{"REQ " + someID + " -1\n", "fault E_INVALID REQ could not parse timeout -1"},
	} {
		for _, step := range []int{1, 2, 5, len(x.in)} {
			if got := parseAll(newParser(PhaseClosing), x.in, step); got != x.want {
				t.Errorf("%q in steps of %d:\n got %s\nwant %s", x.in, step, got, x.want)
			}
		}
		verb, _, _ := strings.Cut(strings.TrimRight(x.in, "\r\n"), " ")
		want := "fault E_INVALID cannot " + verb + " in current state"
		if got := parseAll(newParser(PhaseInit), x.in, 1); got != want {
			t.Errorf("%q before SUB: got %s, want %s", x.in, got, want)
		}
	}
}

func TestParseSubWithoutHeartbeats(t *testing.T) {
	p := newParser(PhaseInit)
	p.Heartbeats = false
	if got := parseAll(p, "SUB t c\n", 8); got != "fault E_INVALID cannot SUB with heartbeats disabled" {
		t.Error(got)
	}
}

// B97
func TestParseBatch(t *testing.T) {
	head := "MPUB t\n"
	for _, x := range []struct{ in, want string }{
		{head + nsqtest.Sized(nsqtest.BatchBody("a", "bc")), fmt.Sprintf("MPUB \"t\" body %q", nsqtest.BatchBody("a", "bc"))},
		{"MPUB\n", "fault E_INVALID MPUB insufficient number of parameters"},
		{"MPUB a:b\n", `fault E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a:b" is not valid`},
		{head + nsqtest.U32(0), "fault E_BAD_BODY MPUB invalid body size 0"},
		{head + nsqtest.U32(-5), "fault E_BAD_BODY MPUB invalid body size -5"},
		{head + nsqtest.U32(5<<20+1), "fault E_BAD_BODY MPUB body too big 5242881 > 5242880"},
		{head + nsqtest.Sized("abc"), "fault E_BAD_BODY MPUB failed to read message count"},
		{head + nsqtest.U32(8) + nsqtest.U32(0), "fault E_BAD_BODY MPUB invalid message count 0"},
		{head + nsqtest.U32(8) + nsqtest.U32(-1), "fault E_BAD_BODY MPUB invalid message count -1"},
		{head + nsqtest.U32(8) + nsqtest.U32(1048576), "fault E_BAD_BODY MPUB invalid message count 1048576"},
		{head + nsqtest.U32(8) + nsqtest.U32(1048575), "all bytes left"},
		{head + nsqtest.Sized(nsqtest.BatchBody("ok", "")), "fault E_BAD_MESSAGE MPUB invalid message(1) body size 0"},
		{
			head + nsqtest.U32(2<<20) + nsqtest.U32(1) + nsqtest.U32(1<<20+1),
			"fault E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
		},
		{
			head + nsqtest.Sized(nsqtest.U32(2)+nsqtest.Sized("a")),
			"fault E_BAD_MESSAGE MPUB failed to read message(1) body size",
		},
		{head + nsqtest.Sized(nsqtest.U32(1)+nsqtest.U32(2)+"a"), "fault E_BAD_MESSAGE MPUB failed to read message body"},
		{head + nsqtest.Sized(nsqtest.BatchBody("a")+"zz"), "fault E_BAD_BODY MPUB invalid body size 11"},
	} {
		for _, step := range []int{1, 4, len(x.in)} {
			want := x.want
			if strings.HasSuffix(want, "bytes left") {
				want = fmt.Sprintf("%d bytes left", len(x.in))
			}
			if got := parseAll(newParser(PhaseInit), x.in, step); got != want {
				t.Errorf("%q in steps of %d:\n got %s\nwant %s", x.in, step, got, want)
			}
		}
	}
}

func TestBatchMessages(t *testing.T) {
	body := []byte(nsqtest.BatchBody("a", "bc", "d"))
	got := publish.Messages(nil, body)
	if string(bytes.Join(got, []byte("|"))) != "a|bc|d" {
		t.Fatalf("%q", got)
	}
	if cap(got[0]) != 1 {
		t.Error("appending to a message would overwrite the next one")
	}
}

func TestTruncated(t *testing.T) {
	for _, x := range []struct{ in, want string }{
		{"", ""},
		{"PUB t", ""},
		{"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"},
		{"PUB t\n" + nsqtest.U32(3) + "ab", "E_BAD_MESSAGE PUB failed to read message body"},
		{"DPUB t 1\n" + nsqtest.U32(3), "E_BAD_MESSAGE DPUB failed to read message body"},
		{"MPUB t\n\x00", "E_BAD_BODY MPUB failed to read body size"},
		{"MPUB t\n" + nsqtest.U32(30) + nsqtest.U32(2), "E_BAD_MESSAGE MPUB failed to read message body"},
		{"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"},
		{"IDENTIFY\n" + nsqtest.U32(4) + "{", "E_BAD_BODY IDENTIFY failed to read body"},
	} {
		got := ""
		if f := newParser(PhaseInit).Truncated([]byte(x.in)); f != nil {
			got = f.Text
		}
		if got != x.want {
			t.Errorf("%q: got %q, want %q", x.in, got, x.want)
		}
	}
}

// As soon as its length prefix has arrived, a command's total length is known, and the buffer can grow to that.
func TestParseNeed(t *testing.T) {
	p := newParser(PhaseInit)
	var cmd Command
	for _, x := range []struct {
		in   string
		need int
	}{{"PUB t", 6}, {"PUB t\n\x00", 10}, {"PUB t\n" + nsqtest.U32(500) + "abc", 510}} {
		if n, f := p.Next([]byte(x.in), &cmd); n != 0 || f != nil || p.Need != x.need {
			t.Errorf("%q: n %d, fault %v, need %d, want %d", x.in, n, f, p.Need, x.need)
		}
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	p := newParser(PhaseSubscribed)
	input := []byte("PUB topic\n" + nsqtest.Sized("body") + "FIN " + someID + "\nREQ " + someID + " 10\nRDY 5\nNOP\n" +
		"MPUB topic\n" + nsqtest.Sized(nsqtest.BatchBody("a", "b")))
	var cmd Command
	if n := testing.AllocsPerRun(100, func() {
		for b := input; len(b) > 0; {
			n, f := p.Next(b, &cmd)
			if n == 0 || f != nil {
				t.Fatal(n, f)
			}
			b = b[n:]
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParse checks that no input makes the parser panic, and that the result does not depend on how the bytes arrive.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"PUB t\n" + nsqtest.Sized("x"), "MPUB t\n" + nsqtest.Sized(nsqtest.BatchBody("a", "b")), "DPUB t 5\n" +
			nsqtest.Sized("x"), "SUB t c\n",
		"FIN " + someID + "\nREQ " + someID + " 5\nTOUCH " + someID + "\n", "FIN \x00\n34567890123456\n",
		"RDY 1\nCLS\nNOP\n\n",
		"IDENTIFY\n" + nsqtest.Sized("{}"), "FIN a\r\n", "FIN a\r", "MPUB t\n" + nsqtest.U32(12) + nsqtest.U32(1) +
			nsqtest.U32(-1),
	} {
		for ph := range PhaseClosing + 1 {
			f.Add([]byte(s), byte(ph), byte(1))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, ph, step byte) {
		state := Phase(ph) % (PhaseClosing + 1)
		whole := parseAll(newParser(state), string(in), len(in)+1)
		if pieces := parseAll(newParser(state), string(in), int(step)%32+1); pieces != whole {
			t.Fatalf("in pieces:\n%s\nat once:\n%s", pieces, whole)
		}
	})
}

// benchParse parses the commands of a client in one phase, a thousand at a time.
func benchParse(b *testing.B, in Phase, sent string) {
	p := newParser(in)
	input := []byte(strings.Repeat(sent, 1000))
	b.SetBytes(int64(len(input)))
	b.ReportAllocs()
	var cmd Command
	for b.Loop() {
		for in := input; len(in) > 0; {
			n, _ := p.Next(in, &cmd)
			in = in[n:]
		}
	}
}

func BenchmarkParsePub(b *testing.B) {
	benchParse(b, PhaseInit, "PUB benchmark_topic\n"+nsqtest.Sized(strings.Repeat("x", 100)))
}

func BenchmarkParseFin(b *testing.B) {
	benchParse(b, PhaseSubscribed, "FIN "+someID+"\n")
}
