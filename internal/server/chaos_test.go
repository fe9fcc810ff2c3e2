package server

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// Producers and consumers come and go at any moment. Every message that was answered OK is delivered.
func TestNothingAnsweredIsLost(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/channel/create?topic=t&channel=c", "")

	var mu sync.Mutex
	answered, delivered := map[string]bool{}, map[string]bool{}
	stop := make(chan struct{})
	var consumers, producers sync.WaitGroup
	for i := range 3 {
		consumers.Go(func() { consumeFitfully(n, t, rand.New(rand.NewPCG(1, uint64(i))), stop, &mu, delivered) })
	}
	for i := range 4 {
		producers.Go(func() { publishFitfully(n, t, i, &mu, answered) })
	}
	producers.Wait()
	nsqtest.Eventually(t, "everything that was answered to be delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for body := range answered {
			if !delivered[body] {
				return false
			}
		}
		return true
	})
	close(stop)
	consumers.Wait()
	t.Logf("%d answered, %d delivered", len(answered), len(delivered))
	if len(answered) < 1000 {
		t.Errorf("only %d messages were answered: the test does not test much", len(answered))
	}
}

// publishFitfully pipelines PUBs over connections that it cuts before all answers have arrived.
func publishFitfully(n *testNode, t *testing.T, number int, mu *sync.Mutex, answered map[string]bool) {
	rnd := rand.New(rand.NewPCG(2, uint64(number)))
	for round := range 20 {
		c := n.dial(t)
		var bodies []string
		in := ""
		for i := range 200 {
			body := fmt.Sprintf("%d/%d/%d", number, round, i)
			bodies = append(bodies, body)
			in += nsqtest.Pub("t", body)
		}
		cut := rnd.IntN(len(in))
		go func() { _, _ = c.Conn.Write([]byte(in[:cut])) }() // the connection may end during the write
		for range rnd.IntN(len(bodies)) {
			k, d, err := c.Frame(100 * time.Millisecond) // an error: the commands that were cut off get no answer
			if err != nil {
				break
			}
			if k != nsqtest.FrameResponse || string(d) != "OK" {
				t.Errorf("frame %d %q", k, d)
				return
			}
			mu.Lock()
			answered[bodies[0]] = true
			mu.Unlock()
			bodies = bodies[1:]
		}
		if rnd.IntN(2) == 0 {
			_ = c.Conn.SetLinger(0) // a reset instead of an orderly end
		}
		_ = c.Conn.Close()
	}
}

// consumeFitfully confirms, requeues or drops messages on connections that end at any moment.
func consumeFitfully(
	n *testNode, t *testing.T, rnd *rand.Rand, stop chan struct{}, mu *sync.Mutex, delivered map[string]bool,
) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		c := n.dial(t)
		c.Sub("t", "c")
		c.Send("RDY 50\n")
		for range rnd.IntN(500) {
			k, d, err := c.Frame(50 * time.Millisecond)
			if err != nil || k != nsqtest.FrameMessage {
				break
			}
			m := nsqtest.Message{ID: string(d[10:26]), Body: string(d[26:])}
			switch rnd.IntN(20) {
			case 0:
				c.Send("REQ " + m.ID + " 0\n")
			case 1: // kept: delivered again when the connection ends
			default:
				mu.Lock()
				delivered[m.Body] = true
				mu.Unlock()
				c.Send("FIN " + m.ID + "\n")
			}
		}
		_ = c.Conn.Close()
	}
}
