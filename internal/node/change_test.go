package node_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
)

// Changed options hold for the topics that there are and for what comes; the way back holds, too. Options that
// contradict each other change nothing, and those that need a restart stay.
func TestChangedOptionsHold(t *testing.T) {
	o := smallOptions(newDisk())
	e := openWith(t, o)
	topic, err := e.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topic.CreateChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	change := func(f func(*node.Options)) error {
		next := o
		f(&next)
		return e.Change(next)
	}
	delayed := func(d time.Duration) error {
		_, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("x"), Delay: d})
		return err
	}
	publish := func(body string, headers ...message.Header) error {
		_, err := topic.PublishMessage(t.Context(), message.Outgoing{Body: []byte(body), Headers: headers})
		return err
	}
	made := func(name string) error {
		_, err := e.Topic(t.Context(), name)
		return err
	}
	channel := func(name string) error {
		_, err := topic.Channel(t.Context(), name)
		return err
	}
	served, err := topic.Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	subscribe := func(o message.ConsumerOptions) error {
		k, err := served.Attach(o, &testClient{t: t, came: make(chan struct{}, 1)})
		if err == nil {
			k.Close()
		}
		return err
	}
	// It stays, whatever becomes of the limits.
	first, err := served.Attach(message.ConsumerOptions{}, &testClient{t: t, came: make(chan struct{}, 1)})
	if err != nil {
		t.Fatal(err)
	}
	timeouts := func(one, all time.Duration) func() error {
		return func() error {
			k, err := served.Attach(message.ConsumerOptions{}, &testClient{t: t, came: make(chan struct{}, 1)})
			if err != nil {
				return err
			}
			defer k.Close()
			if untouched, most := k.Timeouts(); untouched != one || most != all {
				return fmt.Errorf("the timeouts are %v and %v, want %v and %v", untouched, most, one, all)
			}
			return nil
		}
	}
	for _, x := range []struct {
		name string
		set  func(*node.Options)
		do   func() error
		want error
	}{
		{
			"MaxDefer", func(o *node.Options) { o.MaxDefer = time.Minute },
			func() error { return delayed(time.Hour) }, errs.ErrDeferTooLong,
		},
		{
			"MaxMessageBytes", func(o *node.Options) { o.MaxMessageBytes = 2 },
			func() error { return publish("xyz") }, errs.ErrMessageTooBig,
		},
		{
			"MaxHeaderBytes", func(o *node.Options) { o.MaxHeaderBytes = 2 },
			func() error { return publish("x", message.Header{Key: []byte("name"), Value: []byte("v")}) }, errs.ErrHeaderBytes,
		},
		{
			"MaxBatchBytes", func(o *node.Options) { o.MaxMessageBytes, o.MaxHeaderBytes, o.MaxBatchBytes = 9, 9, 9 },
			func() error { return publish("123456789") }, errs.ErrBatchTooBig,
		},
		{
			"MaxStateBytes", func(o *node.Options) { o.MaxStateBytes = 1 },
			func() error { return delayed(time.Second) }, errs.ErrStateFull,
		},
		{
			"MaxRanges", func(o *node.Options) { o.MaxRanges = 1 },
			func() error { return errors.Join(delayed(time.Hour), delayed(time.Hour)) }, errs.ErrStateFull,
		},
		{
			"MaxConsumers", func(o *node.Options) { o.MaxConsumers = 1 },
			func() error { return subscribe(message.ConsumerOptions{}) }, errs.ErrTooManyClients,
		},
		{
			"MsgTimeout", func(o *node.Options) { o.MsgTimeout, o.MaxMsgTimeout = 7*time.Second, 7*time.Second },
			timeouts(7*time.Second, 7*time.Second), nil,
		},
		{
			"MaxNodeInboxBytes", func(o *node.Options) { o.MaxNodeInboxBytes = 1 },
			func() error { return publish("xyz") }, errs.ErrOverloaded,
		},
		{
			"MaxTopics", func(o *node.Options) { o.MaxTopics = 1 },
			func() error { return made("u") }, errs.ErrTooManyTopics,
		},
		{
			"MaxPartitions", func(o *node.Options) { o.MaxPartitions = 1 },
			func() error { return made("u") }, errs.ErrTooManyPartitions,
		},
		{
			"DefaultPartitions", func(o *node.Options) { o.MaxPartitions, o.DefaultPartitions = 2, 2 },
			func() error { return made("u") }, errs.ErrTooManyPartitions,
		},
		{
			"DisableAutoCreate", func(o *node.Options) { o.DisableAutoCreate = true },
			func() error { return channel("d") }, errs.ErrAutoCreateOff,
		},
		{
			"MaxChannels", func(o *node.Options) { o.MaxChannels = 1 },
			func() error { return channel("d") }, errs.ErrTooManyChans,
		},
	} {
		if err := change(x.set); err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		if err := x.do(); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
	}
	if err := change(func(o *node.Options) { o.RetentionAge = time.Hour }); err != nil {
		t.Fatal(err)
	}
	if _, is := errors.AsType[*errs.RetentionError](delayed(2 * time.Hour)); !is {
		t.Errorf("a delay beyond the new age of all topics: %v", delayed(2*time.Hour))
	}
	err = change(func(o *node.Options) { o.RetentionAge, o.TokenShare = time.Minute, 101 })
	if !errors.Is(err, errs.ErrOptions) {
		t.Errorf("a share of 101 percent: %v", err)
	}
	if err := change(func(o *node.Options) { o.MaxMessageBytes = 5 }); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{
		Body: []byte("longer"),
	}); !errors.Is(err, errs.ErrMessageTooBig) {
		t.Errorf("a message of 6 bytes where 5 are allowed: %v", err)
	}
	if err := change(func(*node.Options) {}); err != nil {
		t.Fatal(err)
	}
	_, err = topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("longer")})
	err = errors.Join(err, delayed(2*time.Hour), made("u"), channel("d"), subscribe(message.ConsumerOptions{}),
		timeouts(time.Minute, 15*time.Minute)())
	if err != nil {
		t.Errorf("as before: %v", err)
	}
	if !first.HasRoom() {
		t.Error("the first consumer is gone")
	}
}
