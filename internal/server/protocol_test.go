package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/segment/aio/faultaio"
)

func TestMagic(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dialRaw(t)
	c.send("BAD!PUB t\n")
	c.fatal("E_BAD_PROTOCOL")
	d := n.dialRaw(t)
	d.send("  ")
	d.send("V2" + pub("t", "x"))
	d.ok()
}

// Pipelined commands of every kind are answered in the order of the commands, whichever of them the engine completes
// first.
func TestPipelinedAnswersInOrder(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	var in strings.Builder
	const rounds = 300
	for i := range rounds {
		topic := fmt.Sprintf("t%d", i%7)
		in.WriteString(pub(topic, "a") + pub(topic, "b") + "NOP\n")
		in.WriteString("MPUB " + topic + "\n" + sized(batchBody("c", "d")))
		in.WriteString("IDENTIFY\n" + sized(fmt.Sprintf(`{"feature_negotiation":true,"msg_timeout":%d}`, 1000+i)))
		in.WriteString(fmt.Sprintf("DPUB %s %d\n", topic, i%3) + sized("e"))
	}
	in.WriteString("PUB bad:name\n")
	go c.nc.Write([]byte(in.String() + strings.Repeat(pub("t0", "never"), 100)))
	for i := range rounds {
		for range 3 {
			c.ok()
		}
		_, d, err := c.frame(patience)
		var reply negotiation
		if err != nil || json.Unmarshal(d, &reply) != nil || reply.MsgTimeout != int64(1000+i) {
			t.Fatalf("round %d: got %.100q, %v", i, d, err)
		}
		c.ok()
	}
	c.fatal(`E_BAD_TOPIC PUB topic name "bad:name" is not valid`)
	total := uint64(0)
	for i := range 7 {
		total += n.topicNow(t, fmt.Sprintf("t%d", i)).MessageCount
	}
	if total != rounds*5 {
		t.Errorf("%d messages stored, want %d: what follows a fatal error must be ignored", total, rounds*5)
	}
}

// A Put that the engine refuses is answered in its turn, and then the connection ends.
func TestRefusedPutIsFatalInItsTurn(t *testing.T) {
	n := startNode(t, node.Options{MaxMessageBytes: 1000}, Options{})
	for _, x := range []struct{ cmd, code string }{
		{pub("t", strings.Repeat("x", 1001)), "E_PUB_FAILED PUB failed "},
		{"MPUB t\n" + sized(batchBody("a", strings.Repeat("x", 1001))), "E_MPUB_FAILED MPUB failed "},
		{"DPUB t 5\n" + sized(strings.Repeat("x", 1001)), "E_DPUB_FAILED DPUB failed "},
	} {
		c := n.dial(t)
		c.send(pub("other", "1") + "NOP\n" + pub("t", "2"))
		c.ok()
		c.ok()
		c.send(x.cmd + pub("other", "3"))
		c.fatal(x.code + node.ErrMessageTooBig.Error() + ": the size of a message in bytes is 1001, and at most 1000 is " +
			"allowed: see the node's setting max-message-bytes")
	}
}

func TestTopicCreationOff(t *testing.T) {
	n := startNode(t, node.Options{DisableAutoCreate: true}, Options{})
	c := n.dial(t)
	c.send(pub("t", "x"))
	c.fatal("E_PUB_FAILED PUB failed " + node.ErrAutoCreateOff.Error())
	d := n.dial(t)
	d.send("SUB t c\n")
	d.fatal("E_SUB_FAILED SUB failed " + node.ErrAutoCreateOff.Error())
}

func TestAnswersAfterHalfClose(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	c.send(strings.Repeat(pub("t", "x"), 100) + "PUB t\n" + u32(10) + "trunc")
	if err := c.nc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		c.ok()
	}
	c.fatal("E_BAD_MESSAGE PUB failed to read message body")
}

// If a topic is deleted while a producer is connected, the next PUB creates it again.
func TestPubAfterTopicDelete(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	for range 3 {
		c.send(pub("t", "x"))
		c.ok()
		if got := n.topicNow(t, "t").MessageCount; got != 1 {
			t.Fatalf("%d messages, want 1", got)
		}
		n.post(t, "/topic/delete?topic=t", "")
	}
}

func TestLargeMessages(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	c.sub("t", "c")
	c.send("RDY 10\n")
	for _, size := range []int{1, minReadBytes - 8, minReadBytes, maxReadBytes, 1 << 20} {
		body := strings.Repeat(string(rune('a'+size%26)), size)
		go c.nc.Write([]byte(pub("t", body)))
		var got message
		for range 2 { // the answer and the message, in either order
			k, d, err := c.frame(patience)
			if err != nil {
				t.Fatal(err)
			}
			if k == frameMessage {
				got = message{id: string(d[10:26]), body: string(d[26:])}
			}
		}
		if got.body != body {
			t.Fatalf("%d bytes: %d came back", size, len(got.body))
		}
		c.send("FIN " + got.id + "\n")
	}
}

func TestSubscriberCommands(t *testing.T) {
	n := startNode(t, node.Options{MaxConsumers: 2}, Options{nsqSettings: nsqSettings{MaxChannelConsumers: 2}})
	c := n.dial(t)
	c.sub("t", "c")
	c.send("RDY 1\n")
	n.post(t, "/pub?topic=t", "x")
	m := c.message()
	c.send("REQ " + m.id + " 0\n")
	if again := c.message(); again.id != m.id || again.attempts != 2 {
		t.Fatalf("%+v after %+v", again, m)
	}
	other := n.dial(t)
	other.sub("t", "c")
	other.send("FIN " + m.id + "\n")
	other.expect(frameError, "E_FIN_FAILED FIN "+m.id+" failed client does not own message")
	third := n.dial(t)
	third.send("SUB t c\n")
	third.fatal("E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2")

	c.send("TOUCH " + m.id + "\nFIN " + m.id + "\nFIN " + m.id + "\n")
	c.expect(frameError, "E_FIN_FAILED FIN "+m.id+" failed ID not in flight")
	for _, id := range []string{"0123456789abcdef", "0123456789ABCDEF", "ffffffffffffffff", "\x00\n34567890123456"} {
		c.send("TOUCH " + id + "\nREQ " + id + " 5\n") // B95
		c.expect(frameError, "E_TOUCH_FAILED TOUCH "+id+" failed ID not in flight")
		c.expect(frameError, "E_REQ_FAILED REQ "+id+" failed ID not in flight")
	}
	c.send("CLS\nRDY 5\n" + pub("t", "y"))
	c.expect(frameResponse, "CLOSE_WAIT")
	c.ok()
	c.silent(50 * time.Millisecond)
	c.send("CLS\n")
	c.fatal("E_INVALID cannot CLS in current state")
	c.send("AUTH\n" + sized("s")) // nothing is answered after the end
	d := n.dial(t)
	d.send("AUTH\n" + sized("secret"))
	d.fatal("E_AUTH_DISABLED AUTH disabled")
}

// However a connection ends, the messages in flight to its client are delivered again at once.
func TestRequeueAtDisconnect(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	next := n.dial(t)
	next.sub("t", "c")
	for i, end := range []func(c *client){
		func(c *client) { c.nc.Close() },
		func(c *client) { c.nc.SetLinger(0); c.nc.Close() },
		func(c *client) { c.nc.CloseWrite() },
		func(c *client) { c.send("BLAH\n") },
	} {
		c := n.dial(t)
		c.sub("t", "c")
		c.send("RDY 1\n")
		n.post(t, "/pub?topic=t", fmt.Sprint(i))
		m := c.message()
		start := time.Now()
		end(c)
		next.send("RDY 1\n")
		again := next.message()
		if again.id != m.id || again.attempts != 2 {
			t.Errorf("way %d: %+v after %+v", i, again, m)
		}
		if late := time.Since(start); late > 5*time.Second { // msg_timeout is 60 s
			t.Errorf("way %d: redelivered after %v", i, late)
		}
		next.send("FIN " + again.id + "\nRDY 0\n")
	}
}

func TestEphemeral(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	c.sub("t", "tail#ephemeral")
	d := n.dial(t)
	d.sub("u#ephemeral", "c#ephemeral")
	if got := len(n.topicNow(t, "t").Channels); got != 1 {
		t.Fatalf("%d channels", got)
	}
	c.nc.Close()
	d.nc.Close()
	eventually(t, "the channel to vanish", func() bool { return len(n.topicNow(t, "t").Channels) == 0 })
	eventually(t, "the topic to vanish", func() bool { return len(n.e.Stats("u#ephemeral", "")) == 0 })
	// Clients come and go on the same ephemeral names, and every SUB succeeds.
	for range 50 {
		c := n.dial(t)
		c.sub("u#ephemeral", "c#ephemeral")
		c.nc.Close()
	}
}

func TestDeletedChannelClosesConsumers(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c, d := n.dial(t), n.dial(t)
	c.sub("t", "c")
	d.sub("t", "d")
	n.post(t, "/channel/delete?topic=t&channel=c", "")
	c.closed()
	n.post(t, "/topic/delete?topic=t", "")
	d.closed()
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	// What comes late is the machine's; the default is 30 s.
	start, late := time.Now(), 10*time.Second
	c.identify(`{"feature_negotiation":true,"heartbeat_interval":1000}`)
	var quiet time.Time
	for beat := range time.Duration(2) {
		c.expect(frameResponse, "_heartbeat_")
		if d := time.Since(start); d < beat*time.Second+500*time.Millisecond || d > late {
			t.Errorf("heartbeat %d after %v", beat, d)
		}
		quiet = time.Now()
		c.send("NOP\n")
	}
	for {
		if _, _, err := c.frame(patience); err != nil {
			break
		}
	}
	if d := time.Since(quiet); d < 1500*time.Millisecond || d > late {
		t.Errorf("closed after %v of silence, want about 2 s", d)
	}
}

// Heartbeats continue while an answer is owed: go-nsq would close the connection after a minute without them.
func TestHeartbeatWhilePublishIsPending(t *testing.T) {
	t.Parallel()
	disk := faultaio.New(faultaio.Options{Seed: 1})
	n := startNode(t, node.Options{Disk: disk}, Options{})
	c := n.dial(t)
	c.identify(`{"heartbeat_interval":1000}`)
	c.send(pub("t", "x"))
	c.ok()
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Count: -1, Hold: true})
	c.send(pub("t", "y") + pub("t", "z"))
	for range 3 {
		c.expect(frameResponse, "_heartbeat_")
		c.send("NOP\n")
	}
	disk.ClearRules()
	disk.ReleaseHeld()
	c.ok()
	c.ok()
}

func TestHeartbeatsOff(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{HeartbeatInterval: time.Second}})
	c := n.dial(t)
	c.identify(`{"heartbeat_interval":-1}`)
	c.silent(2500 * time.Millisecond)
	c.send(pub("t", "x"))
	c.ok()
	c.send("SUB t c\n")
	c.fatal("E_INVALID cannot SUB with heartbeats disabled")
}

func TestShutdownAnswersWhatIsOwed(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	idle := n.dial(t)
	idle.sub("t", "c")
	const count = 2000
	c.send(strings.Repeat(pub("t", "x"), count))
	c.ok()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.Shutdown(ctx) }()
	answered := uint64(1)
	for {
		k, d, err := c.frame(patience)
		if err != nil {
			break
		}
		if k != frameResponse || string(d) != "OK" {
			t.Fatalf("frame %d %q", k, d)
		}
		answered++
	}
	idle.closed()
	c.nc.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if stored := n.topicNow(t, "t").MessageCount; answered != stored {
		t.Errorf("%d answers for %d stored messages", answered, stored)
	}
}
