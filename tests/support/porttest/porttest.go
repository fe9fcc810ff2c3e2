package porttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Ports are below those that Linux hands out for outgoing connections (32768), and above the fixed ones of
// dev-cluster. They are given in blocks.
const (
	firstPort  = 15_000
	lastPort   = 32_000
	blockPorts = 10
	tries      = 1000
)

// rest has the ports of a block that Address has not given yet.
var rest struct {
	mu   sync.Mutex
	next int
	left int
}

// Range returns the first of count consecutive ports.
func Range(count int) (int, error) {
	blocks := (count + blockPorts - 1) / blockPorts
	for range tries {
		base := firstPort + blockPorts*rand.IntN((lastPort-firstPort)/blockPorts-blocks+1)
		if hold(base, blocks) {
			return base, nil
		}
	}
	return 0, fmt.Errorf("no %d consecutive ports from %d to %d are free", count, firstPort, lastPort)
}

// Address returns an address of 127.0.0.1.
func Address(t testing.TB) string {
	t.Helper()
	rest.mu.Lock()
	defer rest.mu.Unlock()
	if rest.left == 0 {
		base, err := Range(blockPorts)
		if err != nil {
			t.Fatal(err)
		}
		rest.next, rest.left = base, blockPorts
	}
	rest.next, rest.left = rest.next+1, rest.left-1
	return address(rest.next - 1)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// hold takes blocks for this process, or returns false if somebody has one of them. A block is taken by its first UDP
// port, which nobody else uses: the kernel gives it to one process, until that ends in whatever way.
func hold(base, blocks int) bool {
	var held []net.PacketConn
	for b := range blocks {
		c, err := net.ListenPacket("udp", address(base+b*blockPorts))
		if err == nil {
			held = append(held, c)
			err = unused(base + b*blockPorts)
		}
		if err != nil {
			for _, c := range held {
				_ = c.Close()
			}
			return false
		}
	}
	holding.Lock()
	defer holding.Unlock()
	holding.blocks = append(holding.blocks, held...)
	return true
}

// holding keeps the collector from closing what is held.
var holding struct {
	sync.Mutex
	blocks []net.PacketConn
}

// unused returns an error if somebody listens on a port of a block, who does not know of blocks.
func unused(base int) (err error) {
	for p := base; p < base+blockPorts && err == nil; p++ {
		var l net.Listener
		if l, err = net.Listen("tcp", address(p)); err == nil {
			err = l.Close()
		}
	}
	return err
}
