package strangers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func from(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

// script runs steps: "a1" enters a connection named a1 from the address of its letter, "-a1" takes it out, "!a1" lets
// it stay, "?a1" lets it go again. It returns which connections had to go, in order, and which were turned away.
func script(t *testing.T, most int, steps string) (gone []string) {
	t.Helper()
	c := New(most)
	members := map[string]*Stranger{}
	for step := range strings.FieldsSeq(steps) {
		name := strings.TrimLeft(step, "-!?")
		switch step[0] {
		case '-':
			members[name].Leave()
		case '!':
			members[name].Stay(true)
		case '?':
			members[name].Stay(false)
		default:
			m := c.Stranger(from(fmt.Sprintf("10.0.0.%d", step[0])), func() { gone = append(gone, step) })
			if members[step] = m; !m.Enter() {
				gone = append(gone, "new:"+step)
			}
		}
		if c.Size() > most {
			t.Errorf("%d connections in a room for %d", c.Size(), most)
		}
	}
	return gone
}

func TestWhoGoes(t *testing.T) {
	for _, test := range []struct{ what, steps, want string }{
		{"there is room", "a1 a2 b1", ""},
		{"one address: its oldest", "a1 a2 a3 a4 a5", "a1 a2"},
		{"the address with the most, whoever comes", "a1 a2 b1 c1", "a1"},
		{"it comes again and again, and another keeps its place", "b1 a1 a2 a3 a4 a5", "a1 a2 a3"},
		{"all have one: the oldest", "a1 b1 c1 d1", "a1"},
		{"whoever has left is not made to go", "a1 a2 -a1 b1 c1 d1", "a2"},
		{"leaving twice counts once", "a1 a2 -a1 -a1 b1 c1 d1", "a2"},
		{"a member that stays keeps its place", "a1 a2 !a1 b1 c1", "a2"},
		{"afterwards it is the newest of its address", "a1 a2 !a1 ?a1 b1 c1", "a2"},
		{"all stay: the new one goes", "a1 a2 a3 !a1 !a2 !a3 b1", "new:b1"},
		{"one that stayed and has left makes room", "a1 a2 a3 !a1 !a2 !a3 -a2 b1", ""},
	} {
		if got := strings.Join(script(t, 3, test.steps), " "); got != test.want {
			t.Errorf("%s: %q had to go, and not %q", test.what, got, test.want)
		}
	}
}

func TestLeaveTells(t *testing.T) {
	c := New(1)
	a, b := c.Stranger(from("10.0.0.1"), func() {}), c.Stranger(from("10.0.0.2"), func() {})
	if !a.Enter() || !b.Enter() {
		t.Fatal("a connection was turned away")
	}
	if a.Leave() {
		t.Error("a connection that had to go has proved itself in time")
	}
	if !b.Leave() || b.Leave() || c.Size() != 0 {
		t.Errorf("b left; %d are left", c.Size())
	}
}

// Addresses of one network are one where whoever has one of them has all.
func TestOf(t *testing.T) {
	for _, test := range []struct{ a, b string }{
		{"10.0.0.1", "::ffff:10.0.0.1"}, {"2001:db8::1", "2001:db8::ffff:2"},
	} {
		if Of(from(test.a)) != Of(from(test.b)) {
			t.Errorf("%s and %s are two", test.a, test.b)
		}
	}
	if Of(from("2001:db8:0:1::1")) == Of(from("2001:db8::1")) || Of(from("10.0.0.1")) == Of(from("10.0.0.2")) {
		t.Error("two are one")
	}
	if Of(&net.UnixAddr{Name: "x"}) != (netip.Addr{}) {
		t.Error("a socket without an address has one")
	}
}

// The same steps on a list, which looks at everything each time.
func TestAgainstAModel(t *testing.T) {
	type member struct {
		*Stranger
		addr, name int
		stays      bool
	}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		most, addresses := 1+r.IntN(8), 1+r.IntN(5)
		c := New(most)
		var in []*member // in the order of their coming
		gone, want := []int{}, []int{}
		for name := range 400 {
			switch k := r.IntN(10); {
			case k < 6 || len(in) == 0:
				m := &member{addr: r.IntN(addresses), name: name}
				m.Stranger = c.Stranger(from(fmt.Sprintf("10.0.0.%d", m.addr)), func() { gone = append(gone, name) })
				entered := m.Enter()
				count := map[int]int{}
				for _, o := range in {
					if !o.stays {
						count[o.addr]++
					}
				}
				if len(in) >= most && len(count) == 0 {
					if entered {
						t.Fatalf("seed %d: a connection has a place that there is not", seed)
					}
					continue
				}
				in = append(in, m)
				count[m.addr]++
				if len(in) > most {
					out := -1
					for i, o := range in {
						if !o.stays && (out < 0 || count[o.addr] > count[in[out].addr]) {
							out = i
						}
					}
					want = append(want, in[out].name)
					in = slices.Delete(in, out, out+1)
				}
			case k < 8:
				i := r.IntN(len(in))
				if !in[i].Leave() {
					t.Fatalf("seed %d: a member had gone", seed)
				}
				in = slices.Delete(in, i, i+1)
			default:
				i := r.IntN(len(in))
				m := in[i]
				m.stays = !m.stays
				m.Stay(m.stays)
				if !m.stays {
					in = append(slices.Delete(in, i, i+1), m)
				}
			}
			if c.Size() != len(in) || !slices.Equal(gone, want) {
				t.Fatalf("seed %d, step %d: %d members and not %d; gone %v and not %v", seed, name, c.Size(), len(in), gone, want)
			}
		}
	}
}

func TestTogether(t *testing.T) {
	c := New(10)
	var ended, left atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 1000 {
				m := c.Stranger(from(fmt.Sprintf("10.0.0.%d", i%3)), func() { ended.Add(1) })
				m.Enter()
				m.Stay(true)
				m.Stay(false)
				if m.Leave() {
					left.Add(1)
				}
			}
		})
	}
	all.Wait()
	if c.Size() != 0 || ended.Load()+left.Load() != 8000 {
		t.Errorf("%d are in, %d had to go, %d left", c.Size(), ended.Load(), left.Load())
	}
}
