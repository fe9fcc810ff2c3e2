package relay

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// devices are those of a relay in this namespace.
func devices(t *testing.T) (names []string) {
	t.Helper()
	all, err := filepath.Glob("/sys/class/net/pr*/tun_flags")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		names = append(names, strings.Split(path, "/")[4])
	}
	return names
}

func needRelay(t *testing.T) {
	t.Helper()
	if err := Missing(); err != nil {
		t.Skipf("this machine cannot have a relay: %v", err)
	}
}

// A packet takes half of a round trip, not less, from each host to each other one, and a new round trip holds at once.
func TestRoundTrip(t *testing.T) {
	needRelay(t)
	r, err := New(3, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]int{{0, 1}, {2, 1}} {
		p, err := r.NewProbe(pair[0], pair[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []time.Duration{0, 200 * time.Microsecond, time.Millisecond} {
			r.SetRoundTrip(want)
			got, err := p.RoundTrip(100, 200)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("hosts %v: %v for %v; %+v", pair, got, want, r.Stats())
			if got < want {
				t.Errorf("hosts %v: a round trip of %v took %v", pair, want, got)
			}
		}
		r.SetRoundTrip(0)
		rate, err := p.Bulk(300 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("hosts %v: %.0f MB/s; %+v", pair, rate/1e6, r.Stats())
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// Close takes the device of this namespace away, and the namespaces of the others.
func TestCloseLeavesNothing(t *testing.T) {
	needRelay(t)
	before := devices(t)
	r, err := New(2, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	namespace := r.Namespace(1)
	inside, err := os.Readlink(namespace)
	if err != nil || !strings.HasPrefix(inside, "net:") {
		t.Errorf("the namespace is %q: %v", inside, err)
	}
	if len(devices(t)) != len(before)+1 {
		t.Errorf("the devices of this namespace were %v and are %v", before, devices(t))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if left := devices(t); len(left) != len(before) {
		t.Errorf("the devices of this namespace were %v, and %v are left", before, left)
	}
	if now, err := os.Readlink(namespace); err == nil && now == inside {
		t.Errorf("the namespace %s is left", now)
	}
}

// With more in flight than the ring takes, packets wait, and TCP loses nothing.
func TestRingWraps(t *testing.T) {
	f := &forwarder{ring: make([]byte, 3*maxPacketBytes)}
	for i, step := range []struct {
		release int
		put     int // bytes; 0: there is no room
	}{
		{0, maxPacketBytes},
		{0, maxPacketBytes},
		{0, maxPacketBytes},
		{0, 0},
		{1, 100},
		{0, 0},
		{1, 100},
		{2, 5000},
		{1, maxPacketBytes},
		{0, maxPacketBytes},
		{0, 0},
		{2, maxPacketBytes},
	} {
		f.first += step.release
		room := f.room()
		if room != (step.put > 0) {
			t.Fatalf("step %d: room is %v; next %d, %+v", i, room, f.next, f.queue[f.first:])
		}
		if !room {
			continue
		}
		for _, h := range f.queue[f.first:] {
			if f.next < h.at+len(h.data) && h.at < f.next+maxPacketBytes {
				t.Fatalf("step %d: a packet at %d overwrites one at %d of %d bytes", i, f.next, h.at, len(h.data))
			}
		}
		f.queue = append(f.queue, held{at: f.next, data: f.ring[f.next : f.next+step.put]})
		f.next += step.put
	}
}

func TestHostOf(t *testing.T) {
	r := &Relay{prefix: [3]byte{10, 120, 7}, hosts: make([]host, 3)}
	packet := func(to string) []byte {
		p := make([]byte, virtioBytes+ipv4Bytes)
		p[virtioBytes] = 4<<4 | 5
		copy(p[virtioBytes+16:], net.ParseIP(to).To4())
		return p
	}
	for to, want := range map[string]int{
		"10.120.7.10": 0, "10.120.7.12": 2, "10.120.7.13": -1, "10.120.7.9": -1, "10.121.7.10": -1, "11.120.7.10": -1,
	} {
		if got := r.hostOf(packet(to)); got != want {
			t.Errorf("%s is host %d, want %d", to, got, want)
		}
	}
	if r.hostOf(packet("10.120.7.10")[:virtioBytes+ipv4Bytes-1]) != -1 || r.hostOf(make([]byte, 100)) != -1 {
		t.Error("what is no packet of IPv4 has a host")
	}
}
