package client

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// script drives a flow by commands, and writes down the steps that it asks for.
type script struct {
	t     *testing.T
	f     flow
	began time.Time
	now   time.Time
	named map[string]*packet
	out   []string
}

var fates = []struct {
	name string
	err  error
}{
	{"unknown", ErrUnknown},
	{"fenced", ErrFenced},
	{"noleader", ErrNoLeader},
	{"sequence", ErrSequence},
	{"refused", ErrRefused},
	{"closed", ErrClosed},
	{"stopped", ErrStopped},
}

func fateOf(err error) string {
	if err == nil {
		return "stored"
	}
	var all []string
	for _, f := range fates {
		if errors.Is(err, f.err) {
			all = append(all, f.name)
		}
	}
	return strings.Join(all, "+")
}

var verdicts = map[string]verdict{
	"stored": verdictStored, "again": verdictAgain, "perhaps": verdictPerhaps, "gap": verdictGap, "forgot": verdictForgot,
	"fenced": verdictFenced, "refused": verdictRefused,
}

func newScript(t *testing.T, linger time.Duration) *script {
	s := &script{t: t, began: time.Unix(1000, 0), named: map[string]*packet{}}
	s.now = s.began
	s.f.o = flowOptions{
		linger: linger, timeout: 1000 * time.Millisecond, maxBytes: 100, inFlight: 3,
		pause: func(fails int) time.Duration { return time.Duration(10*fails) * time.Millisecond },
	}
	return s
}

func (s *script) nameOf(p *packet) string {
	for name, q := range s.named {
		if q == p {
			return name
		}
	}
	return "?"
}

func (s *script) seal() string {
	name := string(rune('a' + len(s.named)))
	p := new(packet)
	s.named[name] = p
	s.f.sealed(p)
	return name
}

// run takes steps until the flow waits.
func (s *script) run() {
	for {
		switch a := s.f.step(s.now); a.do {
		case doWait:
			if a.until.IsZero() {
				s.out = append(s.out, "wait")
			} else {
				s.out = append(s.out, fmt.Sprintf("wait %d", a.until.Sub(s.began).Milliseconds()))
			}
			return
		case doSeal:
			s.out = append(s.out, "seal "+s.seal())
		case doOpen:
			s.out = append(s.out, "open")
		case doSend:
			s.out = append(s.out, fmt.Sprintf("send %s=%d", s.nameOf(a.p), a.base))
		case doTell:
			s.out = append(s.out, fmt.Sprintf("tell %s %s", s.nameOf(a.p), fateOf(a.err)))
		case doDrop:
			s.out = append(s.out, "drop "+s.nameOf(a.p))
		}
	}
}

// do executes one command: at MS, add BYTES, connect, disconnect, opened SEQUENCE, unopened VERDICT, BATCH VERDICT,
// end, stop, flush.
func (s *script) do(command string) {
	var word, arg string
	var n int
	_, _ = fmt.Sscan(command, &word, &arg)
	_, _ = fmt.Sscan(arg, &n)
	switch word {
	case "at":
		s.now = s.began.Add(time.Duration(n) * time.Millisecond)
	case "add":
		if !s.f.fits(n) {
			s.out = append(s.out, "full "+s.seal())
		}
		s.f.added(s.now, n)
	case "connect":
		s.f.connect()
	case "disconnect":
		s.f.disconnect()
	case "opened":
		s.f.opened(uint32(n))
	case "unopened":
		s.f.openRefused(s.now, verdicts[arg], ErrRefused)
	case "end":
		s.f.end(ErrClosed)
	case "stop":
		s.f.o.stop = true
	case "flush":
		s.f.flushing = true
	default:
		p, v := s.named[word], verdicts[arg]
		if p == nil {
			s.t.Fatalf("command %q", command)
		}
		s.f.answered(s.now, p, v, 100, false, ErrRefused)
	}
}

// flowCases are histories. In each line the commands stand before ">", and the steps that flow then asks for behind it.
var flowCases = []struct {
	name   string
	linger int
	script string
}{
	{"one message", 0, `
		add 10 > wait 1000
		connect > open; wait 1000
		opened 7 > seal a; send a=7; wait 1000
		a stored > tell a stored; wait`},
	{"linger", 50, `
		connect; add 10 > open; wait 1000
		opened 0 > wait 50
		at 20; add 10 > wait 50
		at 50 > seal a; send a=0; wait 1000
		a stored > tell a stored; wait`},
	{"size ends linger", 50, `
		connect; add 60 > open; wait 1000
		opened 0 > wait 50
		add 40 > seal a; send a=0; wait 1000
		add 60; add 60 > send b=2; wait 50`},
	{"flush ends linger", 500, `
		connect; add 10 > open; wait 1000
		opened 0; flush > seal a; send a=0; wait 1000`},
	{"batches grow while all are on their way", 0, `
		connect; add 10 > open; wait 1000
		opened 0 > seal a; send a=0; wait 1000
		add 10 > seal b; send b=1; wait 1000
		add 10 > seal c; send c=2; wait 1000
		add 10; add 10 > wait 1000
		a stored > tell a stored; seal d; send d=3; wait 1000
		b stored; c stored; d stored > tell b stored; tell c stored; tell d stored; wait`},
	{"answers in another order are told in order", 0, `
		connect; add 10 > open; wait 1000
		opened 0 > seal a; send a=0; wait 1000
		add 10 > seal b; send b=1; wait 1000
		b stored > wait 1000
		a stored > tell a stored; tell b stored; wait`},
	{"a lost connection: the same batches with the same numbers", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		disconnect > wait 1000
		connect > send a=5; send b=6; wait 1000
		a stored; b stored > tell a stored; tell b stored; wait`},
	{"not the leader: wait for all answers, pause, then again", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		a again > wait 1000
		b gap > wait 10
		at 10 > send a=5; send b=6; wait 1000
		a again; b again > wait 40`},
	{"unknown, and the next one is stored", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 0 > send a=0; seal b; send b=1; wait 1000
		a perhaps; b stored > wait 10
		at 10 > send a=0; wait 1000
		a stored > tell a stored; tell b stored; wait`},
	{"never sent: certainly not stored", 0, `
		add 10 > wait 1000
		at 1000 > seal a; tell a noleader; wait`},
	{"only refusals that say why: certainly not stored", 0, `
		connect; add 10 > open; wait 1000
		opened 0 > seal a; send a=0; wait 1000
		a again > wait 10
		at 1000 > tell a noleader+refused; wait
		add 10 > seal b; send b=0; wait 2000`},
	{"time is over: unknown, and nothing overtakes it", 0, `
		connect; add 60 > open; wait 1000
		opened 0 > seal a; send a=0; wait 1000
		at 500; add 60 > seal b; send b=1; wait 1000
		disconnect > wait 1000
		at 1000 > tell a unknown; wait 1500
		add 60; at 1400; connect > send a=0; send b=1; seal c; send c=2; wait 1500
		a stored; b stored; c stored > drop a; tell b stored; tell c stored; wait`},
	{"an attempt without an answer is repeated", 0, `
		connect; add 10 > open; wait 1000
		opened 0 > seal a; send a=0; wait 1000
		at 1000 > tell a unknown; wait 1010
		at 1010 > send a=0; wait 2010
		a stored > drop a; wait`},
	{"a gap without a reason ends the batch, and the numbers begin anew", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		a gap; b gap > tell a sequence+refused; open; wait 1000
		opened 9 > send b=9; wait 1000`},
	{"a forgotten producer: what had no answer is unknown, the rest is sent anew", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		a perhaps; b gap > wait 10
		at 10 > send a=5; send b=6; wait 1000
		a forgot; b forgot > tell a unknown; wait 40
		at 40 > open; wait 1000
		opened 0 > send b=0; wait 1000`},
	{"fenced", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		add 10; a fenced > tell a fenced; tell b unknown+fenced; seal c; tell c fenced; wait`},
	{"refused for ever: what is behind it gets its numbers, and nobody is fenced", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		a refused > tell a refused; wait 1000
		b gap > send b=5; wait 1000
		b stored; add 10 > tell b stored; seal c; send c=6; wait 1000
		c refused; add 10 > tell c refused; seal d; send d=6; wait 1000`},
	{"two are refused, the first one after an attempt without an answer: its numbers may have been used", 0, `
		connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		disconnect > wait 1000
		connect > send a=5; send b=6; wait 1000
		a refused > tell a unknown+refused; wait 1000
		b gap > tell b unknown; wait
		add 10 > open; wait 1000
		opened 7 > seal c; send c=7; wait 1000`},
	{"not allowed to publish", 0, `
		connect; add 10 > open; wait 1000
		unopened refused > seal a; tell a refused; wait 10
		add 10 > seal b; tell b refused; wait 10
		at 10; add 10 > open; wait 1010`},
	{"the opening has no answer", 0, `
		connect; add 10 > open; wait 1000
		unopened again > wait 10
		at 10 > open; wait 1000
		disconnect > wait 1000
		connect > open; wait 1000
		opened 3 > seal a; send a=3; wait 1000`},
	{"late and repeated answers change nothing", 0, `
		connect; add 10 > open; wait 1000
		opened 4; opened 9 > seal a; send a=4; wait 1000
		disconnect; a stored > wait 1000
		connect > send a=4; wait 1000
		a stored; a refused > tell a stored; wait`},
	{"stops at the first failure", 0, `
		stop; connect; add 60 > open; wait 1000
		add 60 > wait 1000
		opened 5 > send a=5; seal b; send b=6; wait 1000
		add 60; a refused > tell a refused; tell b unknown+stopped; seal c; tell c stopped; wait`},
	{"stops at an unknown message", 0, `
		stop; connect; add 60 > open; wait 1000
		opened 5 > seal a; send a=5; wait 1000
		at 1000 > tell a unknown; drop a; wait`},
	{"closed", 0, `
		connect; add 60 > open; wait 1000
		opened 5 > seal a; send a=5; wait 1000
		add 60; end > tell a unknown+closed; seal b; tell b closed; wait`},
}

// A batch is sealed by size, by time, by a flush, or because there is room for it on the way; it is sent in order, with
// at most inFlight on their way; each answer has one meaning.
func TestFlow(t *testing.T) {
	for _, c := range flowCases {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t, time.Duration(c.linger)*time.Millisecond)
			for line := range strings.Lines(strings.TrimSpace(c.script)) {
				commands, want, _ := strings.Cut(strings.TrimSpace(line), " > ")
				for command := range strings.SplitSeq(commands, "; ") {
					s.do(command)
				}
				s.run()
				var steps []string
				for _, o := range s.out {
					if !strings.HasPrefix(o, "full ") {
						steps = append(steps, o)
					}
				}
				if got := strings.Join(steps, "; "); got != want {
					t.Fatalf("after %q:\n got %s\nwant %s", commands, got, want)
				}
				s.out = nil
			}
		})
	}
}
