package nsq

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/nsqtest"
)

func TestMagic(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dialRaw(t)
	c.Send("BAD!PUB t\n")
	c.Fatal("E_BAD_PROTOCOL")
	d := n.dialRaw(t)
	d.Send("  ")
	d.Send("V2" + nsqtest.Pub("t", "x"))
	d.OK()
}

// Pipelined commands of every kind are answered in the order of the commands, whichever of them the engine completes
// first.
func TestPipelinedAnswersInOrder(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	var in strings.Builder
	const rounds = 300
	for i := range rounds {
		topic := fmt.Sprintf("t%d", i%7)
		in.WriteString(nsqtest.Pub(topic, "a") + nsqtest.Pub(topic, "b") + "NOP\n")
		in.WriteString("MPUB " + topic + "\n" + nsqtest.Sized(nsqtest.BatchBody("c", "d")))
		in.WriteString("IDENTIFY\n" + nsqtest.Sized(fmt.Sprintf(`{"feature_negotiation":true,"msg_timeout":%d}`, 1000+i)))
		in.WriteString(fmt.Sprintf("DPUB %s %d\n", topic, i%3) + nsqtest.Sized("e"))
	}
	in.WriteString("PUB bad:name\n")
	go c.Conn.Write([]byte(in.String() + strings.Repeat(nsqtest.Pub("t0", "never"), 100)))
	for i := range rounds {
		for range 3 {
			c.OK()
		}
		_, d, err := c.Frame(nsqtest.Patience)
		var reply negotiation
		if err != nil || json.Unmarshal(d, &reply) != nil || reply.MsgTimeout != int64(1000+i) {
			t.Fatalf("round %d: got %.100q, %v", i, d, err)
		}
		c.OK()
	}
	c.Fatal(`E_BAD_TOPIC PUB topic name "bad:name" is not valid`)
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
	n := startNode(t, node.Options{MaxMessageBytes: 1000}, Settings{})
	for _, x := range []struct{ cmd, code string }{
		{nsqtest.Pub("t", strings.Repeat("x", 1001)), "E_PUB_FAILED PUB failed "},
		{"MPUB t\n" + nsqtest.Sized(nsqtest.BatchBody("a", strings.Repeat("x", 1001))), "E_MPUB_FAILED MPUB failed "},
		{"DPUB t 5\n" + nsqtest.Sized(strings.Repeat("x", 1001)), "E_DPUB_FAILED DPUB failed "},
	} {
		c := n.dial(t)
		c.Send(nsqtest.Pub("other", "1") + "NOP\n" + nsqtest.Pub("t", "2"))
		c.OK()
		c.OK()
		c.Send(x.cmd + nsqtest.Pub("other", "3"))
		c.Fatal(x.code + errs.ErrMessageTooBig.Error() + ": the size of a message in bytes is 1001, and at most 1000 is " +
			"allowed: see the node's setting max-message-bytes")
	}
}

func TestTopicCreationOff(t *testing.T) {
	n := startNode(t, node.Options{DisableAutoCreate: true}, Settings{})
	c := n.dial(t)
	c.Send(nsqtest.Pub("t", "x"))
	c.Fatal("E_PUB_FAILED PUB failed " + errs.ErrAutoCreateOff.Error())
	d := n.dial(t)
	d.Send("SUB t c\n")
	d.Fatal("E_SUB_FAILED SUB failed " + errs.ErrAutoCreateOff.Error())
}

func TestAnswersAfterHalfClose(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Send(strings.Repeat(nsqtest.Pub("t", "x"), 100) + "PUB t\n" + nsqtest.U32(10) + "trunc")
	if err := c.Conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		c.OK()
	}
	c.Fatal("E_BAD_MESSAGE PUB failed to read message body")
}

// If a topic is deleted while a producer is connected, the next PUB creates it again.
func TestPubAfterTopicDelete(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	for range 3 {
		c.Send(nsqtest.Pub("t", "x"))
		c.OK()
		if got := n.topicNow(t, "t").MessageCount; got != 1 {
			t.Fatalf("%d messages, want 1", got)
		}
		if err := n.e.DeleteTopic(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLargeMessages(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 10\n")
	for _, size := range []int{1, minReadBytes - 8, minReadBytes, maxReadBytes, 1 << 20} {
		body := strings.Repeat(string(rune('a'+size%26)), size)
		go c.Conn.Write([]byte(nsqtest.Pub("t", body)))
		var got nsqtest.Message
		for range 2 { // the answer and the message, in either order
			k, d, err := c.Frame(nsqtest.Patience)
			if err != nil {
				t.Fatal(err)
			}
			if k == frameMessage {
				got = nsqtest.Message{ID: string(d[10:26]), Body: string(d[26:])}
			}
		}
		if got.Body != body {
			t.Fatalf("%d bytes: %d came back", size, len(got.Body))
		}
		c.Send("FIN " + got.ID + "\n")
	}
}

func TestSubscriberCommands(t *testing.T) {
	n := startNode(t, node.Options{MaxConsumers: 2}, Settings{MaxChannelConsumers: 2})
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 1\n")
	n.publish(t, "t", "x")
	m := c.Message()
	c.Send("REQ " + m.ID + " 0\n")
	if again := c.Message(); again.ID != m.ID || again.Attempts != 2 {
		t.Fatalf("%+v after %+v", again, m)
	}
	other := n.dial(t)
	other.Sub("t", "c")
	other.Send("FIN " + m.ID + "\n")
	other.Expect(frameError, "E_FIN_FAILED FIN "+m.ID+" failed client does not own message")
	third := n.dial(t)
	third.Send("SUB t c\n")
	third.Fatal("E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2")

	c.Send("TOUCH " + m.ID + "\nFIN " + m.ID + "\nFIN " + m.ID + "\n")
	c.Expect(frameError, "E_FIN_FAILED FIN "+m.ID+" failed ID not in flight")
	for _, id := range []string{"0123456789abcdef", "0123456789ABCDEF", "ffffffffffffffff", "\x00\n34567890123456"} {
		c.Send("TOUCH " + id + "\nREQ " + id + " 5\n") // B95
		c.Expect(frameError, "E_TOUCH_FAILED TOUCH "+id+" failed ID not in flight")
		c.Expect(frameError, "E_REQ_FAILED REQ "+id+" failed ID not in flight")
	}
	c.Send("CLS\nRDY 5\n" + nsqtest.Pub("t", "y"))
	c.Expect(frameResponse, "CLOSE_WAIT")
	c.OK()
	c.Silent(50 * time.Millisecond)
	c.Send("CLS\n")
	c.Fatal("E_INVALID cannot CLS in current state")
	c.Send("AUTH\n" + nsqtest.Sized("s")) // nothing is answered after the end
	d := n.dial(t)
	d.Send("AUTH\n" + nsqtest.Sized("secret"))
	d.Fatal("E_AUTH_DISABLED AUTH disabled")
}

// However a connection ends, the messages in flight to its client are delivered again at once.
func TestRequeueAtDisconnect(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	next := n.dial(t)
	next.Sub("t", "c")
	for i, end := range []func(c *nsqtest.Client){
		func(c *nsqtest.Client) { c.Conn.Close() },
		func(c *nsqtest.Client) { c.Conn.SetLinger(0); c.Conn.Close() },
		func(c *nsqtest.Client) { c.Conn.CloseWrite() },
		func(c *nsqtest.Client) { c.Send("BLAH\n") },
	} {
		c := n.dial(t)
		c.Sub("t", "c")
		c.Send("RDY 1\n")
		n.publish(t, "t", fmt.Sprint(i))
		m := c.Message()
		start := time.Now()
		end(c)
		next.Send("RDY 1\n")
		again := next.Message()
		if again.ID != m.ID || again.Attempts != 2 {
			t.Errorf("way %d: %+v after %+v", i, again, m)
		}
		if late := time.Since(start); late > 5*time.Second { // msg_timeout is 60 s
			t.Errorf("way %d: redelivered after %v", i, late)
		}
		next.Send("FIN " + again.ID + "\nRDY 0\n")
	}
}

func TestEphemeral(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Sub("t", "tail#ephemeral")
	d := n.dial(t)
	d.Sub("u#ephemeral", "c#ephemeral")
	if got := len(n.topicNow(t, "t").Channels); got != 1 {
		t.Fatalf("%d channels", got)
	}
	c.Conn.Close()
	d.Conn.Close()
	nsqtest.Eventually(t, "the channel to vanish", func() bool { return len(n.topicNow(t, "t").Channels) == 0 })
	nsqtest.Eventually(t, "the topic to vanish", func() bool { return len(n.e.Stats("u#ephemeral", "")) == 0 })
	// Clients come and go on the same ephemeral names, and every SUB succeeds.
	for range 50 {
		c := n.dial(t)
		c.Sub("u#ephemeral", "c#ephemeral")
		c.Conn.Close()
	}
}

func TestDeletedChannelClosesConsumers(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c, d := n.dial(t), n.dial(t)
	c.Sub("t", "c")
	d.Sub("t", "d")
	topic, _ := n.e.Catalog().LookupTopic("t")
	if err := topic.DeleteChannel(context.Background(), "c"); err != nil {
		t.Fatal(err)
	}
	c.Closed()
	if err := n.e.DeleteTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	d.Closed()
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	// What comes late is the machine's; the default is 30 s.
	start, late := time.Now(), 10*time.Second
	c.Identify(`{"feature_negotiation":true,"heartbeat_interval":1000}`)
	var quiet time.Time
	for beat := range time.Duration(2) {
		c.Expect(frameResponse, "_heartbeat_")
		if d := time.Since(start); d < beat*time.Second+500*time.Millisecond || d > late {
			t.Errorf("heartbeat %d after %v", beat, d)
		}
		quiet = time.Now()
		c.Send("NOP\n")
	}
	for {
		if _, _, err := c.Frame(nsqtest.Patience); err != nil {
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
	n := startNode(t, node.Options{Disk: disk}, Settings{})
	c := n.dial(t)
	c.Identify(`{"heartbeat_interval":1000}`)
	c.Send(nsqtest.Pub("t", "x"))
	c.OK()
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Count: -1, Hold: true})
	c.Send(nsqtest.Pub("t", "y") + nsqtest.Pub("t", "z"))
	for range 3 {
		c.Expect(frameResponse, "_heartbeat_")
		c.Send("NOP\n")
	}
	disk.ClearRules()
	disk.ReleaseHeld()
	c.OK()
	c.OK()
}

func TestHeartbeatsOff(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Settings{HeartbeatInterval: time.Second})
	c := n.dial(t)
	c.Identify(`{"heartbeat_interval":-1}`)
	c.Silent(2500 * time.Millisecond)
	c.Send(nsqtest.Pub("t", "x"))
	c.OK()
	c.Send("SUB t c\n")
	c.Fatal("E_INVALID cannot SUB with heartbeats disabled")
}

func TestShutdownAnswersWhatIsOwed(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	idle := n.dial(t)
	idle.Sub("t", "c")
	const count = 2000
	c.Send(strings.Repeat(nsqtest.Pub("t", "x"), count))
	c.OK()
	ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { n.Shutdown(ctx); done <- ctx.Err() }()
	answered := uint64(1)
	for {
		k, d, err := c.Frame(nsqtest.Patience)
		if err != nil {
			break
		}
		if k != frameResponse || string(d) != "OK" {
			t.Fatalf("frame %d %q", k, d)
		}
		answered++
	}
	idle.Closed()
	c.Conn.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if stored := n.topicNow(t, "t").MessageCount; answered != stored {
		t.Errorf("%d answers for %d stored messages", answered, stored)
	}
}
