package native

import (
	"strings"
	"testing"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// One token, or one address where none is needed, takes its quarter of the subscriptions and readers, however many
// connections it has. Then it is told the value and the limit, and another one is served.
func TestOpenedIsShared(t *testing.T) {
	a, _ := tokens(t, map[string]string{
		"mallory": `permissions = ["publish", "subscribe"]` + "\n" + `topics = ["orders"]` + "\n" + `channels = ["*"]`,
		"billing": `permissions = ["publish", "subscribe"]` + "\n" + `topics = ["orders"]` + "\n" + `channels = ["*"]`,
	})
	for name, edit := range map[string]func(*Options){
		"tokens":    func(o *Options) { o.Auth = a },
		"addresses": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, func(o *Options) {
				o.MaxConnSubscriptions, o.MaxSubscriptions = 2, 32
				o.MaxConnReaders, o.MaxReaders = 2, 32
				if edit != nil {
					edit(o)
				}
			})
			topic, _ := stock(t, w, 0)
			enter := func(who, ip string) *client {
				t.Helper()
				if name == "tokens" {
					ip = "127.0.0.1"
				}
				c := w.dialFrom(ip)
				if name == "tokens" {
					c.login(who)
				}
				return c
			}
			newest := &wire.Read{Topic: topic.ID(), From: wire.FromNewest, Credit: 100}
			var c *client
			for i := range 4 {
				if i%2 == 0 {
					c = enter("mallory", "127.0.0.2")
				}
				c.subscribe(topic, "c", nil)
				c.read(newest).records()
			}
			c = enter("mallory", "127.0.0.2")
			for _, got := range []wire.Outcome{
				c.refusal(c.sendSubscribe(topic, "c", nil), wire.TypeSubscribed, netproto.StatusFull),
				c.refusal(c.send(wire.TypeRead, newest), wire.TypeReadEnd, netproto.StatusFull),
			} {
				if !strings.Contains(got.Text, "of this token or address is 5, and at most 4 is allowed") {
					t.Errorf("it is told %q", got.Text)
				}
			}
			other := enter("billing", "127.0.0.3")
			for range 2 {
				other.subscribe(topic, "c", nil)
				other.read(newest).records()
			}
			other.c.Abort(nil)
			eventually(t, "what has ended is given back", func() bool {
				return w.s.subscribed.Used() == 4 && w.s.readers.Used() == 4 && w.s.inFlight.Used() == 0
			})
		})
	}
}

// Requests of one address that wait for their answers take a quarter of the bytes that the node has for them.
func TestRequestsInFlightAreShared(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnInFlightBytes, o.MaxInFlightBytes = 1000, 4000 })
	one, other := newSessionOf(t, w, "127.0.0.2"), newSessionOf(t, w, "127.0.0.3")
	if over := one.reserve(one.pays(), 900); over != nil {
		t.Fatal(over)
	}
	second := newSessionOf(t, w, "127.0.0.2")
	over := second.reserve(second.pays(), 200)
	if over == nil || !strings.Contains(over.Error(), "of this token or address") ||
		!strings.Contains(over.Error(), "at most 1000 is allowed") {
		t.Errorf("%v", over)
	}
	if over := other.reserve(other.pays(), 900); over != nil {
		t.Error(over)
	}
	one.giveBack(one.pays(), 900, nil)
	if over := second.reserve(second.pays(), 200); over != nil {
		t.Error(over)
	}
	second.giveBack(second.pays(), 200, nil)
	other.giveBack(other.pays(), 900, nil)
}

// newSessionOf returns the session of a new connection from an address.
func newSessionOf(t *testing.T, w *world, ip string) *session {
	t.Helper()
	before := map[*session]bool{}
	for _, s := range w.s.all() {
		before[s] = true
	}
	w.dialFrom(ip)
	var found *session
	eventually(t, "its session", func() bool {
		for _, s := range w.s.all() {
			if !before[s] {
				found = s
			}
		}
		return found != nil
	})
	return found
}

// Clients of one address that read nothing take a sixteenth of the room for output, and those of another one have
// theirs.
func TestOutputIsShared(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnOutputBytes, o.MaxOutputBytes = 1000, 32000 })
	room := func(who string) *output {
		o := newOutput(w.s.opts.MaxConnOutputBytes, w.s.output, func() string { return who })
		return &o
	}
	one, two, three, other := room("a"), room("a"), room("a"), room("b")
	if !one.try(900) || !two.try(900) {
		t.Fatal("there is no room")
	}
	if three.try(300) {
		t.Error("an address has more than its share")
	}
	if !other.try(900) {
		t.Error("another address has no room")
	}
	waits := make(chan error)
	go func() { waits <- three.take(t.Context(), 300) }()
	if !one.resize(900, 1000) || !one.resize(1000, 500) {
		t.Error("the room cannot become larger, and smaller again")
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
	for o, n := range map[*output]int{one: 500, two: 900, three: 300, other: 900} {
		o.give(n)
	}
	if n := w.s.output.Used(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}
