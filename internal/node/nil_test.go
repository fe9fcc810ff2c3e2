package node_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/offline"
	topicpkg "penstock/internal/node/topic"
)

// apiPackage are the packages whose types programs and servers use under the names that package node gives them.
var apiPackage = regexp.MustCompile(`penstock/internal/node(/topic|/offline|/channel)?$`)

// nilable lists the parameters of the exported methods of a type, and of the types that they return, that may be nil:
// functions, interfaces and pointers. A context is none of them: nil is refused by a panic of the caller's goroutine,
// as everywhere in Go.
func nilable(typ reflect.Type, seen map[reflect.Type]bool) (all []string) {
	if seen[typ] || typ.Kind() != reflect.Pointer || !apiPackage.MatchString(typ.Elem().PkgPath()) {
		return nil
	}
	seen[typ] = true
	for i := range typ.NumMethod() {
		m := typ.Method(i)
		for p := 1; p < m.Type.NumIn(); p++ {
			in := m.Type.In(p)
			switch in.Kind() {
			case reflect.Func, reflect.Interface, reflect.Pointer, reflect.Chan:
				if in != reflect.TypeFor[context.Context]() {
					all = append(all, fmt.Sprintf("%s.%s %d", typ.Elem().Name(), m.Name, p))
				}
			}
		}
		for r := range m.Type.NumOut() {
			all = append(all, nilable(m.Type.Out(r), seen)...)
		}
	}
	return all
}

// Whatever may be nil in a call of the engine's is refused with ErrOptions, or stands for none: no program that has
// forgotten it dies later, on a goroutine of the engine.
func TestNilIsRefusedOrNone(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	s := openMessages(t, c, node.ConsumeOptions{})
	k, err := c.Attach(node.ConsumerOptions{}, &testClient{t: t, came: make(chan struct{}, 1)})
	if err != nil {
		t.Fatal(err)
	}
	o, p, put := node.ConsumerOptions{}, node.Producer{ID: 1, Epoch: 1}, node.Put{Messages: [][]byte{[]byte("m")}}
	done := node.Put{Messages: put.Messages, Done: func(*node.Put) {}}
	subscribed := func(_ node.Consumer, err error) error { return err }
	attached := func(_ *channel.Consumer, err error) error { return err }
	const refused, none = true, false
	cases := map[string]struct {
		refuses bool
		call    func() error
	}{
		"Engine.HoldAnswers 1": {none, func() error { e.HoldAnswers(nil); return nil }},
		"Engine.OnQuestion 1":  {none, func() error { e.OnQuestion(nil); return nil }},
		"Engine.WatchAuth 1":   {none, func() error { e.WatchAuth(nil); return e.Health() }},
		"Topic.ProduceSealed 5": {refused, func() error {
			return topic.ProduceSealed(node.Sender{}, 0, sealed(t, p, "p", 0, 1), false, nil)
		}},
		"Topic.PublishAsync 2": {refused, func() error {
			return topic.PublishAsync(node.Outgoing{Body: []byte("m")}, nil)
		}},
		"Topic.Submit 1": {refused, func() error { return errors.Join(topic.Submit(nil), topic.Submit(&put)) }},
		"Topic.SubmitTo 2": {refused, func() error {
			return errors.Join(topic.SubmitTo(0, nil), topic.SubmitTo(0, &put))
		}},
		"Topic.SubmitNumbered 2": {refused, func() error { return topic.SubmitNumbered(0, &put, &node.Numbered{}) }},
		"Topic.SubmitNumbered 3": {refused, func() error { return topic.SubmitNumbered(0, &done, nil) }},
		"Channel.Attach 2":       {refused, func() error { return attached(c.Attach(o, nil)) }},
		"Channel.AttachLeader 2": {refused, func() error { return attached(c.AttachLeader(o, nil)) }},
		"Channel.Subscribe 3":    {refused, func() error { return subscribed(c.Subscribe(t.Context(), o, nil)) }},
		"Channel.SubscribeClient 3": {refused, func() error {
			return subscribed(c.SubscribeClient(t.Context(), o, nil))
		}},
		"Channel.Consume 3": {refused, func() error { return c.Consume(t.Context(), node.ConsumeOptions{}, nil) }},
		"Channel.Fork 3":    {none, func() error { _, err := c.Fork(t.Context(), "fork", nil); return err }},
		"Consumer.Sync 1":   {none, func() error { k.Sync(nil); return nil }},
		"Messages.Next 2":   {refused, func() error { return s.Next(t.Context(), nil) }},
	}
	seen := map[reflect.Type]bool{ // only package node and the rooms call their methods
		reflect.TypeFor[*topicpkg.Local](): true, reflect.TypeFor[*channel.Channel](): true,
	}
	all := append(nilable(reflect.TypeFor[*node.Engine](), seen),
		nilable(reflect.TypeFor[*offline.Dir](), map[reflect.Type]bool{})...)
	for _, name := range all {
		x, ok := cases[name]
		if !ok {
			t.Errorf("%s may be nil: say here what it does then", name)
			continue
		}
		delete(cases, name)
		if err := x.call(); x.refuses != errors.Is(err, errs.ErrOptions) || !x.refuses && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name := range cases {
		t.Errorf("nothing is called %s", name)
	}
	if _, _, err := offline.AcceptLoss(t.TempDir(), nil); !errors.Is(err, errs.ErrOptions) {
		t.Errorf("AcceptLoss: %v", err)
	}
	publish(t, topic, "after all that") // the engine lives
	if m := take(t, s); string(m.Body) != "after all that" {
		t.Errorf("%q came", m.Body)
	}
}

// Timeouts that nodes cannot tell each other, or that are none, are refused when the engine is opened.
func TestTimeoutsThatAreNone(t *testing.T) {
	for _, o := range []node.Options{
		{MaxMsgTimeout: 50 * 24 * time.Hour}, {MaxMsgTimeout: -1}, {MsgTimeout: 1}, {MsgTimeout: -1},
	} {
		o.DataPath = t.TempDir()
		if e, err := node.Open(t.Context(), o); !errors.Is(err, errs.ErrOptions) {
			t.Errorf("%v and %v: %v", o.MsgTimeout, o.MaxMsgTimeout, err)
			if err == nil {
				e.Close()
			}
		}
	}
}

// What a consumer asks for as its timeout is judged in one place, for all ways to subscribe.
func TestTimeoutsAtAllDoors(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 2)
	tc.create("t", 1)
	e := openOnDisk(t, newDisk())
	topicOf(t, e, "t")
	for name, topic := range map[string]*node.Topic{
		"single": topicOf(t, e, "t"), "cluster": tc.topic(tc.leader("t", 0), "t"),
	} {
		c := channelOf(t, topic, "c")
		g := &testClient{t: t, came: make(chan struct{}, 1)}
		for _, timeout := range []time.Duration{-1, -time.Hour, 1, time.Millisecond - 1} {
			o := node.ConsumerOptions{MsgTimeout: timeout}
			_, attach := c.Attach(o, g)
			_, leader := c.AttachLeader(o, g)
			_, subscribe := c.Subscribe(t.Context(), o, g)
			_, open := c.Open(t.Context(), node.ConsumeOptions{MsgTimeout: timeout})
			for door, err := range map[string]error{
				"Attach": attach, "AttachLeader": leader, "Subscribe": subscribe, "Open": open,
			} {
				if !errors.Is(err, errs.ErrOptions) {
					t.Errorf("%s, %s, %v: %v", name, door, timeout, err)
				}
			}
		}
		k, err := c.Attach(node.ConsumerOptions{MsgTimeout: 50 * 24 * time.Hour}, g)
		if err != nil {
			t.Fatal(err)
		}
		if untouched, most := k.Timeouts(); untouched != most || most != 15*time.Minute {
			t.Errorf("%s: 50 days are %v of %v", name, untouched, most)
		}
		k.Close()
	}
}
