// Package strangers bounds the connections of clients that have proved nothing yet. Each port that waits for a proof (a
// handshake, an AUTH) has one Room for them.
//
// A port that refuses the newest connection when it is full is closed by whoever fills it with silent ones. One that
// closes the oldest is closed by whoever connects faster than honest clients log in. So the address that has the most
// connections in the Room loses its oldest: whoever fills it pays for it, and a client of another address keeps its
// place as long as there are more places than addresses.
package strangers

import (
	"container/heap"
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

var closed atomic.Uint64

// Closed returns how many connections this process has closed for newer ones, in all rooms.
func Closed() uint64 { return closed.Load() }

// Room holds at most so many connections. Any goroutine may call its methods. mu is a leaf; its holder calls nothing
// that is not in this file.
type Room struct {
	mu      sync.Mutex
	most    int
	size    int // also those that stay
	byAddr  map[netip.Addr]*address
	largest addresses // a heap: the first has the most members
	serial  uint64
}

// address is the members from one address. Room.mu guards it.
type address struct {
	addr    netip.Addr
	members list.List // of *Stranger, in the order of their coming
	index   int       // in Room.largest
}

// oldest is the member that goes first.
func (a *address) oldest() *Stranger { return a.members.Front().Value.(*Stranger) }

// Stranger is a connection that enters a Room, and leaves it.
type Stranger struct {
	room   *Room
	addr   netip.Addr
	serial uint64
	at     *list.Element // nil: it is not in the room, or stays; room.mu guards it
	end    func()        // ends the connection
	out    bool          // it has left, or had to go; room.mu guards it
	stays  bool          // it is in the room, and cannot be made to go; room.mu guards it
}

// New returns a Room with at least one place.
func New(most int) *Room { return &Room{most: max(most, 1), byAddr: map[netip.Addr]*address{}} }

// Limit changes how many places the room has, at least one. Who is in it stays.
func (r *Room) Limit(most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = max(most, 1)
}

// Most returns how many places the room has.
func (r *Room) Most() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// Stranger returns what a connection from an address needs to enter the room. end ends that connection, when it has to
// make place for another one.
func (r *Room) Stranger(from net.Addr, end func()) *Stranger {
	return &Stranger{room: r, addr: Of(from), end: end}
}

// Enter takes the connection into the room, once. It calls the end of the one that has to go for it, without a lock.
// It returns false if all places are taken by members that stay: then this connection must go.
func (m *Stranger) Enter() bool {
	r := m.room
	r.mu.Lock()
	if r.size >= r.most && len(r.largest) == 0 {
		m.out = true
		r.mu.Unlock()
		return false
	}
	r.size++
	r.serial++
	m.serial = r.serial
	r.add(m)
	var gone *Stranger
	if r.size > r.most {
		gone = r.largest[0].oldest()
		r.remove(gone)
		gone.out = true
		r.size--
	}
	r.mu.Unlock()
	if gone != nil {
		closed.Add(1)
		gone.end()
	}
	return true
}

// Leave takes the connection out of the room, because it has proved who it is, or has ended. It returns false if the
// connection had to go before: end was called, or is about to be. It returns false, too, if there was a Leave before.
func (m *Stranger) Leave() bool {
	r := m.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.out {
		return false
	}
	m.out = true
	r.size--
	if !m.stays {
		r.remove(m)
	}
	return true
}

// Stay says whether the connection must not be made to go for now, such as while the node itself works on its proof. It
// keeps its place. When it need not stay any more, it is the newest of its address.
func (m *Stranger) Stay(stays bool) {
	r := m.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.out || m.stays == stays {
		return
	}
	if m.stays = stays; stays {
		r.remove(m)
		return
	}
	r.serial++
	m.serial = r.serial
	r.add(m)
}

// Size returns how many connections are in the room.
func (r *Room) Size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// add puts m at the end of its address. mu is held.
func (r *Room) add(m *Stranger) {
	a := r.byAddr[m.addr]
	if a == nil {
		a = &address{addr: m.addr}
		r.byAddr[m.addr] = a
		m.at = a.members.PushBack(m)
		heap.Push(&r.largest, a)
		return
	}
	m.at = a.members.PushBack(m)
	heap.Fix(&r.largest, a.index)
}

// remove takes m out of its address. mu is held.
func (r *Room) remove(m *Stranger) {
	a := r.byAddr[m.addr]
	a.members.Remove(m.at)
	m.at = nil
	if a.members.Len() > 0 {
		heap.Fix(&r.largest, a.index)
		return
	}
	heap.Remove(&r.largest, a.index)
	delete(r.byAddr, m.addr)
}

// Of returns the address that a connection is counted for: the IPv4 address, or the first 64 bits of the IPv6 address,
// since whoever has one of these has all of them. All connections without an IP address count as of one.
func Of(from net.Addr) netip.Addr {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() {
		if prefix, err := addr.Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return addr
}

// addresses is a heap. The address with the most members is first; of two, the one whose oldest member is older.
type addresses []*address

func (h addresses) Len() int { return len(h) }

func (h addresses) Less(i, j int) bool {
	if a, b := h[i].members.Len(), h[j].members.Len(); a != b {
		return a > b
	} else if a == 0 { // both are about to be removed
		return false
	}
	return h[i].oldest().serial < h[j].oldest().serial
}

func (h addresses) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *addresses) Push(x any) {
	a := x.(*address)
	a.index = len(*h)
	*h = append(*h, a)
}

// Pop implements heap.Interface.
func (h *addresses) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return a
}
