//go:build attacks

package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// rate is how many messages a second the tenant publishes.
const rate = 1000

// tenant is a publisher that keeps to its rate, and a client that connects anew every half second. It writes down what
// both notice. mu guards the rest.
type tenant struct {
	node *node
	stop chan struct{}
	all  sync.WaitGroup

	mu      sync.Mutex
	took    []time.Duration // of each answer since the last report
	errors  []string
	highest int64         // memory of the node since the last report
	device  time.Duration // the slowest write of probe since the last report
}

// report is what a tenant noticed in a while.
type report struct {
	count  int
	p99    time.Duration
	errors []string
	memory int64         // the most
	device time.Duration // see probe
}

func (r report) String() string {
	return fmt.Sprintf("%d answers, p99 %v, %d errors, %d MiB, slowest write of the device %v", r.count,
		r.p99.Round(10*time.Microsecond), len(r.errors), r.memory>>20, r.device.Round(10*time.Microsecond))
}

// publishes starts a tenant.
func (n *node) publishes() *tenant {
	n.t.Helper()
	c, err := login(neighbor, n.NSQ, "good")
	if err != nil {
		n.t.Fatal(err)
	}
	if err := c.pub("good", "first"); err != nil {
		n.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Time{})
	tn := &tenant{node: n, stop: make(chan struct{})}
	sent := make(chan time.Time, 10*rate)
	tn.all.Go(func() { tn.publish(c, sent) })
	tn.all.Go(func() { tn.receive(c, sent) })
	tn.all.Go(tn.connect)
	tn.all.Go(tn.weigh)
	tn.all.Go(tn.probe)
	n.t.Cleanup(tn.close)
	return tn
}

func (tn *tenant) close() {
	close(tn.stop)
	tn.all.Wait()
}

func (tn *tenant) failed(what string, err error) {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	tn.errors = append(tn.errors, fmt.Sprintf("%s: %v", what, err))
}

// publish sends a message each millisecond, and those that were due meanwhile if it comes late. An answer's time counts
// from when its message was due.
func (tn *tenant) publish(c *nsqConn, sent chan<- time.Time) {
	defer c.Close()
	defer close(sent)
	command := []byte("PUB good\n" + sized(strings.Repeat("x", 100)))
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for due := time.Now(); ; {
		select {
		case <-tn.stop:
			return
		case now := <-tick.C:
			for ; due.Before(now); due = due.Add(time.Second / rate) {
				select {
				case sent <- due:
				default: // ten seconds without an answer
					tn.failed("publish", fmt.Errorf("%d messages wait for their answers", len(sent)))
					return
				}
				if _, err := c.Write(command); err != nil {
					tn.failed("publish", err)
					return
				}
			}
		}
	}
}

// receive takes the answers. It ends after publish, with the last answer or with the connection.
func (tn *tenant) receive(c *nsqConn, sent <-chan time.Time) {
	for due := range sent {
		text, err := c.frame()
		select {
		case <-tn.stop:
			continue // the connection is closed
		default:
		}
		if err == nil && text != "OK" {
			err = fmt.Errorf("%s", text)
		}
		if err != nil {
			tn.failed("answer", err)
		}
		tn.mu.Lock()
		tn.took = append(tn.took, time.Since(due))
		tn.mu.Unlock()
	}
}

// connect connects a new client every half second, which publishes one message.
func (tn *tenant) connect() {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for {
		select {
		case <-tn.stop:
			return
		case <-tick.C:
		}
		c, err := login(neighbor, tn.node.NSQ, "good")
		if err == nil {
			err = c.pub("good2", "x")
			_ = c.Close()
		}
		if err != nil {
			tn.failed("a new client", err)
		}
	}
}

// weigh looks at the node's memory.
func (tn *tenant) weigh() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tn.stop:
			return
		case <-tick.C:
			m := tn.node.memory()
			tn.mu.Lock()
			tn.highest = max(tn.highest, m)
			tn.mu.Unlock()
		}
	}
}

// probe writes 4 KiB beside the node's data again and again, and waits until they are on stable storage. When the
// device stalls, for which no node is to blame, this write is slow, too.
func (tn *tenant) probe() {
	path := filepath.Join(filepath.Dir(tn.node.LogPath), "probe")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|syscall.O_DSYNC, 0o600)
	if err != nil {
		tn.failed("the probe of the device", err)
		return
	}
	defer f.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for block := make([]byte, 4096); ; {
		select {
		case <-tn.stop:
			return
		case <-tick.C:
		}
		began := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			tn.failed("the probe of the device", err)
			return
		}
		tn.mu.Lock()
		tn.device = max(tn.device, time.Since(began))
		tn.mu.Unlock()
	}
}

// report returns what the tenant has noticed since the last report.
func (tn *tenant) report() report {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	r := report{count: len(tn.took), errors: tn.errors, memory: tn.highest, device: tn.device}
	if slices.Sort(tn.took); r.count > 0 {
		r.p99 = tn.took[r.count*99/100]
	}
	tn.took, tn.errors, tn.highest, tn.device = nil, nil, 0, 0
	return r
}
