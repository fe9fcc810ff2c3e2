package server

import (
	"context"
	"testing"

	"penstock/batch"
	"penstock/internal/node"
	nativewire "penstock/internal/server/native/wire"
	"penstock/netproto"
)

// namelessFrames are the requests of native clients that name no topic: they are about what an earlier one has named.
var namelessFrames = []netproto.Type{
	nativewire.TypeAuth, nativewire.TypeReadCredit, nativewire.TypeReadEnd, nativewire.TypeCredit, nativewire.TypeFinish,
	nativewire.TypeFinishThrough, nativewire.TypeRequeue, nativewire.TypeTouch, nativewire.TypeSync,
	nativewire.TypeSubscribeEnd, nativewire.TypeRecall,
}

// nativeAnswers are the frames that only nodes send.
var nativeAnswers = []netproto.Type{
	nativewire.TypeAuthAck, nativewire.TypeMetadataReply, nativewire.TypeProducer, nativewire.TypeProduced,
	nativewire.TypeRecords, nativewire.TypeGoAway, nativewire.TypeSubscribed, nativewire.TypeDeliver,
	nativewire.TypeRefused, nativewire.TypeSynced, nativewire.TypeDeliverOrdered,
}

// frames adds the requests of native clients.
func (m *matrix) frames(t *testing.T, n *testNode) {
	m.head("native protocol")
	known := len(namelessFrames) + len(nativeAnswers)
	for _, name := range []string{"a", "b"} {
		topic, err := n.e.CreateTopic(context.Background(), name, 1)
		if err != nil {
			t.Fatal(err)
		}
		id := topic.ID()
		frames := []struct {
			what string
			netproto.Frame
		}{
			{"Metadata " + name, netproto.Frame{
				Type: nativewire.TypeMetadata, Head: nativewire.Append(nil, &nativewire.MetadataRequest{Topics: []string{name}}),
			}},
			{"OpenProducer " + name, netproto.Frame{
				Type: nativewire.TypeOpenProducer, Head: nativewire.Append(nil, &nativewire.OpenProducer{Topic: id}),
			}},
			{"Produce " + name, netproto.Frame{
				Type: nativewire.TypeProduce, Flags: netproto.FlagSelfChecked,
				Head: nativewire.Append(nil, &nativewire.Produce{Topic: id}),
				Body: [][]byte{sealedBatch(t)},
			}},
			{"Read " + name, netproto.Frame{
				Type: nativewire.TypeRead, Head: nativewire.Append(nil, &nativewire.Read{Topic: id, Credit: 1}),
			}},
			{"Subscribe " + name + " c", subscribeFrame(topic, "c")},
			{"Subscribe " + name + " x", subscribeFrame(topic, "x")},
		}
		if last := nativewire.TypeRecall - nativewire.TypeAuth + 1; known+len(frames)-1 != int(last) {
			t.Errorf("the frames of this test are not all %d", last)
		}
		for _, f := range frames {
			m.row(f.what, func(role string) string { return n.frameVerdict(t, f.Frame, role) })
		}
	}
}

func subscribeFrame(topic *node.Topic, channel string) netproto.Frame {
	m := nativewire.Subscribe{
		Topic: topic.ID(), Channel: channel, Create: true, From: nativewire.FromDefault,
		Partition: nativewire.NoPartition, Messages: 1, Bytes: 1 << 20,
	}
	return netproto.Frame{Type: nativewire.TypeSubscribe, Head: nativewire.Append(nil, &m)}
}

// sealedBatch returns a batch of one message.
func sealedBatch(t *testing.T) []byte {
	t.Helper()
	var b batch.Builder
	if err := b.Add(&batch.Record{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	sealed, err := b.Seal(1)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// frameVerdict returns "no" if a request of this role is refused for its rights, and "yes" otherwise. It has a
// connection of its own, because the refusal of a Metadata stands in the answer.
func (n *testNode) frameVerdict(t *testing.T, f netproto.Frame, role string) string {
	t.Helper()
	c, frames, err := n.dialNative(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abort(nil)
	if role != "nobody" {
		login := nativewire.Append(nil, &nativewire.Auth{Token: role})
		if err := c.TrySend(&netproto.Frame{Type: nativewire.TypeAuth, Request: 1, Head: login}); err != nil {
			t.Fatal(err)
		}
		if answer := frames.next(t); answer.Status != netproto.StatusOK {
			return "AUTH"
		}
	}
	f.Request = 2
	if err := c.TrySend(&f); err != nil {
		t.Fatal(err)
	}
	answer := frames.next(t)
	if answer.Type == nativewire.TypeMetadataReply && answer.Status == netproto.StatusOK {
		var m nativewire.Metadata
		if err := nativewire.Decode(answer.Payload, &m); err != nil {
			t.Fatal(err)
		}
		answer.Status = m.Topics[0].Status
	}
	if answer.Status == netproto.StatusUnproven {
		return "no"
	}
	return "yes"
}
