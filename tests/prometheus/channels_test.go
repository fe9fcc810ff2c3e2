//go:build prometheus

package prometheus

import (
	"testing"

	"github.com/nsqio/go-nsq"

	"penstock/tests/cluster/harness"
)

// Alerts of channels that do not deliver what is published fire when a channel of a real node is so, and end after it.
func TestFaultsOfChannels(t *testing.T) {
	f := startSingle(t, harness.Options{Serve: append([]string{"--max-ranges", "4"}, small...)})

	f.fault("PenstockTopicPaused", func() { f.engine("topic", "pause", "orders") },
		func() { f.engine("topic", "unpause", "orders") })
	f.fault("PenstockDelaysRefused", func() {
		f.engine("topic", "create", "later", "--partitions", "1")
		for range 3 {
			f.publishTo("later&defer=600000", 1, 1)
			f.publishTo("later", 1, 1)
		}
	}, func() { f.engine("topic", "delete", "later") })
	f.fault("PenstockChannelPaused", func() { f.engine("channel", "pause", "orders", "mail") },
		func() { f.engine("channel", "unpause", "orders", "mail") })
	f.fault("PenstockChannelSkipping", func() { f.engine("channel", "skip", "orders", "mail") },
		func() { f.engine("channel", "unskip", "orders", "mail") })

	f.engine("topic", "create", "little")
	f.engine("channel", "create", "little", "unread")
	f.engine("topic", "set", "little", "--quota-count", "1", "--quota-mode", "reject")
	f.fault("PenstockOverQuota", func() { f.publishTo("little", 2, 1) },
		func() { f.engine("topic", "delete", "little") })

	held := make(chan *nsq.Message, 100)
	index := 0
	_, stop := f.consume("mail", func(m *nsq.Message) {
		if index++; index%2 == 0 || index > 10 {
			m.Finish()
			return
		}
		held <- m
	})
	f.fault("PenstockChannelFull", func() { f.publish(20, 100) }, func() {
		for range 5 {
			(<-held).Finish()
		}
	})
	stop()

	// A channel that nobody reads fills the topic of the dead letters.
	f.engine("topic", "create", "dead")
	f.engine("channel", "create", "dead", "unread")
	f.engine("topic", "set", "dead", "--quota-count", "1", "--quota-mode", "reject")
	f.engine("channel", "set", "orders", "mail", "--max-attempts", "1", "--dead-letter", "dead")
	_, stop = f.consume("mail", func(m *nsq.Message) { m.RequeueWithoutBackoff(0) })
	f.fault("PenstockDeadLettersAside", func() {
		f.publishTo("dead", 1, 100)
		f.publish(3, 100)
	}, func() { f.engine("topic", "set", "dead", "--quota-count", "0") })
	stop()
	f.engine("topic", "delete", "dead")

	f.engine("topic", "create", "few")
	f.engine("topic", "set", "few", "--quota-bytes", "2MiB", "--quota-mode", "drop-oldest")
	f.engine("channel", "create", "few", "unread")
	f.s.eventually("the new channel is scraped", func() bool {
		return f.s.series(`penstock_channel_dropped_total{channel="unread"} == 0`) == 1
	})
	f.fault("PenstockDropped", func() {
		f.s.eventually("messages are dropped", func() bool {
			f.publishTo("few", 20, 500_000)
			return f.s.series(`penstock_channel_dropped_total{channel="unread"} > 0`) == 1
		})
	}, func() { f.engine("topic", "delete", "few") })
}
