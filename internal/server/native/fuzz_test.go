package native

import (
	"context"
	"encoding/binary"
	"net"
	"testing"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// FuzzFrames: whatever frames a client sends, the server answers or ends that connection, holds nothing of it
// afterwards, and serves others.
func FuzzFrames(f *testing.F) {
	add := func(typ netproto.Type, flags netproto.Flags, payload []byte) {
		f.Add(appendFrame(appendFrame(nil, typ, flags, payload), wire.TypeMetadata, 0, []byte{0, 0, 0}))
	}
	add(wire.TypeAuth, 0, wire.Append(nil, &wire.Auth{Token: "t", Client: "c"}))
	add(wire.TypeMetadata, 0, wire.Append(nil, &wire.MetadataRequest{Topics: []string{"orders", "!"}, Create: true}))
	add(wire.TypeGoAway+1, 0, []byte("x"))
	w := open(f, nil)
	topic, _ := stock(f, w, 3)
	add(wire.TypeOpenProducer, 0, wire.Append(nil, &wire.OpenProducer{Topic: topic.ID(), Name: "p"}))
	sealed := append(wire.Append(nil, &wire.Produce{Topic: topic.ID()}), seal(f, wire.Producer{}, 0, 2)...)
	add(wire.TypeProduce, 1|wire.ProduceBytes<<1, sealed)
	add(wire.TypeRead, 0, wire.Append(nil, &wire.Read{Topic: topic.ID(), From: wire.FromOldest, Credit: 1 << 20}))
	add(wire.TypeReadCredit, 0, wire.Append(nil, &wire.ReadCredit{Bytes: 1 << 31}))
	add(wire.TypeReadEnd, 0, wire.Append(nil, new(wire.Outcome)))
	subscribe := wire.Subscribe{
		Topic: topic.ID(), Channel: "c", From: wire.FromDefault, Partition: wire.NoPartition, Messages: 9, Bytes: 1 << 20,
	}
	add(wire.TypeSubscribe, 0, wire.Append(nil, &subscribe))
	add(wire.TypeCredit, 0, wire.Append(nil, &wire.Credit{Messages: 5, Bytes: 1 << 31}))
	add(wire.TypeFinish, 0, wire.Append(nil, &wire.Handles{Deliveries: []wire.Handle{{}, {Number: 1, ID: 1}}}))
	add(wire.TypeTouch, 0, wire.Append(nil, &wire.Handles{Deliveries: []wire.Handle{{}, {Number: 1, ID: 1 << 60}}}))
	add(wire.TypeFinishThrough, 0, wire.Append(nil, &wire.FinishThrough{Number: 2}))
	later := wire.Delayed{Handle: wire.Handle{Number: 1, ID: 1}, DelayMs: 5}
	add(wire.TypeRequeue, 0, wire.Append(nil, &wire.Requeue{Messages: []wire.Delayed{later}}))
	add(wire.TypeSync, 0, wire.Append(nil, &wire.Sync{Subscription: 9}))
	add(wire.TypeSubscribeEnd, 0, wire.Append(nil, new(wire.Outcome)))
	good := w.dial()
	f.Fuzz(func(t *testing.T, data []byte) {
		nc, err := net.Dial("tcp", w.s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := &client{t: t, frames: make(chan frame, 1<<12), ended: make(chan error, 1)}
		o := netproto.Options{Hello: clientHello(), Handler: c}
		if c.c, err = netproto.Connect(context.Background(), nc, o); err != nil {
			t.Fatal(err)
		}
		for len(data) >= 4 && c.c.Err() == nil {
			n := min(int(binary.LittleEndian.Uint16(data[2:])), len(data)-4)
			fr := &netproto.Frame{Type: netproto.Type(data[0]), Request: uint64(len(data))}
			if payload := data[4 : 4+n]; data[1]&1 != 0 {
				head := min(int(data[1]>>1)&^7, n&^7)
				fr.Flags, fr.Head, fr.Body = netproto.FlagSelfChecked, payload[:head], [][]byte{payload[head:]}
			} else {
				fr.Head = payload
			}
			data = data[4+n:]
			if fr.Type < netproto.TypeError || fr.Type == netproto.TypeChallenge || fr.Type == netproto.TypeProof {
				continue
			}
			_ = c.c.TrySend(fr)
		}
		c.c.Close()
		good.t = t
		good.ask(false, "orders")
		eventually(t, "the end of the connection", func() bool {
			m := w.s.Meter()
			return m.Connections == 1 && m.InFlight == 0 && w.s.readers.Used() == 0 && w.s.pinned.Load() == 0 &&
				m.Subscriptions == 0
		})
	})
}

// appendFrame appends a frame in the form that FuzzFrames reads.
func appendFrame(dst []byte, typ netproto.Type, flags netproto.Flags, payload []byte) []byte {
	dst = append(dst, byte(typ), byte(flags), byte(len(payload)), byte(len(payload)>>8))
	return append(dst, payload...)
}
