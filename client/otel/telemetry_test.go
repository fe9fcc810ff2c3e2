//go:build linux

package clientotel_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"penstock/client"
	clientotel "penstock/client/otel"
)

// recorder keeps in memory what a Telemetry makes.
type recorder struct {
	*clientotel.Telemetry
	t      *testing.T
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the program
	reader *metric.ManualReader
}

func record(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{t: t, spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	tracers := sdk.NewTracerProvider(sdk.WithSpanProcessor(r.spans))
	r.tracer = tracers.Tracer("program")
	var err error
	r.Telemetry, err = clientotel.New(clientotel.Options{
		TracerProvider: tracers, MeterProvider: metric.NewMeterProvider(metric.WithReader(r.reader)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// span returns the only ended span with that name.
func (r *recorder) span(name string) sdk.ReadOnlySpan {
	r.t.Helper()
	var found []sdk.ReadOnlySpan
	for _, s := range r.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("%d spans are named %q", len(found), name)
	}
	return found[0]
}

func text(attributes []attribute.KeyValue) string {
	var all []string
	for _, a := range attributes {
		all = append(all, string(a.Key)+"="+a.Value.String())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// metrics has a line for each data point: its name, its attributes and its count or value.
func (r *recorder) metrics() map[string]int64 {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(context.Background(), &all); err != nil {
		r.t.Fatal(err)
	}
	points := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					points[m.Name+" "+text(p.Attributes.ToSlice())] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					points[m.Name+" "+text(p.Attributes.ToSlice())] = int64(p.Count)
				}
			default:
				r.t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return points
}

func (r *recorder) expectMetric(point string, want int64) {
	r.t.Helper()
	all := r.metrics()
	if got, ok := all[point]; !ok || got != want {
		r.t.Errorf("%s is %d, %v, want %d; there are %v", point, got, ok, want, all)
	}
}

func produce(t *testing.T, c *client.Client) *client.Producer {
	t.Helper()
	p, err := c.Producer(within(t), "orders", client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func next(t *testing.T, c *client.Client) *client.Message {
	t.Helper()
	r, err := c.Reader(within(t), "orders", 0, client.FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m, err := r.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if r.Topic() != "orders" {
		t.Errorf("the reader's topic is %q", r.Topic())
	}
	return &m
}

func TestTraceGoesWithTheMessage(t *testing.T) {
	r := record(t)
	c := dial(t, client.Hooks{})
	p := r.Producer(produce(t, c))
	ctx, request := r.tracer.Start(within(t), "request")
	sent := &client.Message{
		Key: []byte("k"), Body: []byte("hello"),
		Headers: []client.Header{{Key: []byte("traceparent"), Value: []byte("old")}, {Key: []byte("a"), Value: []byte("b")}},
	}
	before := slices.Clone(sent.Headers)
	id, err := p.ProduceSync(ctx, sent)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(sent.Headers, before, func(a, b client.Header) bool {
		return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
	}) {
		t.Errorf("the program's message was changed: %q", sent.Headers)
	}
	send := r.span("send orders")
	if send.SpanKind() != trace.SpanKindProducer || send.Parent().SpanID() != request.SpanContext().SpanID() {
		t.Errorf("the span is a %v, a child of %v", send.SpanKind(), send.Parent())
	}
	const about = "messaging.destination.name=orders messaging.destination.partition.id=0 "
	if got, want := text(send.Attributes()), "messaging.destination.name=orders messaging.destination.partition.id=0 "+
		"messaging.message.body.size=5 messaging.message.id="+id.String()+" messaging.operation.name=send "+
		"messaging.operation.type=send messaging.system=penstock"; got != want {
		t.Errorf("attributes of the span:\n%s\nwant\n%s", got, want)
	}

	m := next(t, c)
	if len(m.Headers) != 2 || string(m.Headers[0].Key) != "a" {
		t.Errorf("the stored headers are %q", m.Headers)
	}
	in, end := r.Process(within(t), "orders", "billing", m)
	inner := trace.SpanContextFromContext(in)
	end(nil)
	process := r.span("process orders")
	if process.SpanContext().SpanID() != inner.SpanID() || process.SpanKind() != trace.SpanKindConsumer ||
		process.SpanContext().TraceID() != request.SpanContext().TraceID() ||
		process.Parent().SpanID() != send.SpanContext().SpanID() || !process.Parent().IsRemote() {
		t.Errorf("the span is a %v in trace %v, a child of %v", process.SpanKind(), process.SpanContext().TraceID(),
			process.Parent())
	}
	if got, want := text(process.Attributes()), about+"messaging.destination.subscription.name=billing "+
		"messaging.message.body.size=5 messaging.message.id="+id.String()+" messaging.operation.name=process "+
		"messaging.operation.type=process messaging.system=penstock"; got != want {
		t.Errorf("attributes of the span:\n%s\nwant\n%s", got, want)
	}
	r.expectMetric("messaging.process.duration "+about+"messaging.destination.subscription.name=billing "+
		"messaging.operation.name=process messaging.operation.type=process messaging.system=penstock", 1)
}

// In a span of the program, such as one of a batch, the message's sender is linked, and the failure is told.
func TestProcessInASpan(t *testing.T) {
	r := record(t)
	c := dial(t, client.Hooks{})
	if _, err := r.Producer(produce(t, c)).ProduceSync(within(t), &client.Message{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	sender := r.span("send orders").SpanContext().SpanID()
	ctx, batch := r.tracer.Start(within(t), "batch")
	_, end := r.Process(ctx, "orders", "", next(t, c))
	end(errors.New("no such order"))
	s := r.span("process orders")
	if s.Parent().SpanID() != batch.SpanContext().SpanID() || len(s.Links()) != 1 ||
		s.Links()[0].SpanContext.SpanID() != sender {
		t.Errorf("a child of %v, with links %v", s.Parent(), s.Links())
	}
	if s.Status().Code != codes.Error || s.Status().Description != "no such order" {
		t.Errorf("the status is %v", s.Status())
	}
	r.expectMetric("messaging.process.duration error.type=_OTHER messaging.destination.name=orders "+
		"messaging.destination.partition.id=0 messaging.operation.name=process messaging.operation.type=process "+
		"messaging.system=penstock", 1)
}

// A message without a trace starts one.
func TestProcessWithoutATrace(t *testing.T) {
	r := record(t)
	c := dial(t, client.Hooks{})
	if _, err := produce(t, c).ProduceSync(within(t), &client.Message{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	_, end := r.Process(within(t), "orders", "", next(t, c))
	end(nil)
	if s := r.span("process orders"); s.Parent().IsValid() || len(s.Links()) != 0 {
		t.Errorf("a child of %v, with links %v", s.Parent(), s.Links())
	}
}

// What is not stored is told in the span, and to the program, with its own message.
func TestRefused(t *testing.T) {
	r := record(t)
	p := r.Producer(produce(t, dial(t, client.Hooks{})))
	sent := &client.Message{Headers: []client.Header{{Key: []byte("penstock-x")}}}
	for _, produce := range []func(func(*client.Message, client.ID, error)){
		func(done func(*client.Message, client.ID, error)) { p.Produce(within(t), sent, done) },
		func(done func(*client.Message, client.ID, error)) { p.TryProduce(within(t), sent, done) },
	} {
		r.spans.Reset()
		told := 0
		produce(func(m *client.Message, _ client.ID, err error) {
			if told++; m != sent || !errors.Is(err, client.ErrRefused) {
				t.Errorf("done got %v, %v", m, err)
			}
		})
		s := r.span("send orders")
		if told != 1 || s.Status().Code != codes.Error || !strings.Contains(text(s.Attributes()), "error.type=refused") {
			t.Errorf("told %d times, %v, %s", told, s.Status(), text(s.Attributes()))
		}
	}
}

// A message that has no room for the trace is stored without it.
func TestNoRoomForTheTrace(t *testing.T) {
	r := record(t)
	c := dial(t, client.Hooks{})
	m := &client.Message{Key: []byte("k"), Body: []byte("x")}
	for range client.MaxHeaderCount - 1 {
		m.Headers = append(m.Headers, client.Header{Key: []byte("a")})
	}
	if _, err := r.Producer(produce(t, c)).ProduceSync(within(t), m); err != nil {
		t.Fatal(err)
	}
	if got := next(t, c); len(got.Headers) != client.MaxHeaderCount-1 {
		t.Errorf("%d headers are stored", len(got.Headers))
	}
}

func TestHooks(t *testing.T) {
	r := record(t)
	connected, batches := make(chan string, 10), make(chan client.ProducedBatch, 10)
	gone := make(chan string, 10)
	c := dial(t, r.Hooks(client.Hooks{
		Connected: func(address string) { connected <- address },
		Produced:  func(b client.ProducedBatch) { batches <- b },
		Disconnected: func(address string, _ error) {
			gone <- address
		},
	}))
	p := produce(t, c)
	if _, err := p.ProduceSync(within(t), &client.Message{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	const about = "messaging.destination.name=orders messaging.destination.partition.id=0 messaging.operation.name=send "
	<-batches
	r.expectMetric("messaging.client.sent.messages "+about+"messaging.system=penstock", 1)
	r.expectMetric("messaging.client.operation.duration "+about+"messaging.operation.type=send messaging.system=penstock",
		1)
	host, port, _ := strings.Cut(<-connected, ":")
	r.expectMetric("penstock.client.connections server.address="+host+" server.port="+port, 1)
	c.Close()
	<-gone
	r.expectMetric("penstock.client.connections server.address="+host+" server.port="+port, 0)
}

// Deliveries of a channel are counted, and processed in the trace of who sent them.
func TestDelivered(t *testing.T) {
	r := record(t)
	heard := make(chan client.Delivery, 1)
	c := dial(t, r.Hooks(client.Hooks{Delivered: func(_, _ string, d client.Delivery) { heard <- d }}))
	p := r.Producer(produce(t, c))
	consumer, err := c.Consumer(within(t), p.Topic(), "billing", client.ConsumerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := p.ProduceSync(within(t), &client.Message{Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	d, err := consumer.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if one := <-heard; one.ID != id || d.ID != id {
		t.Errorf("%v was delivered, and the hook was told of %v, want %v", d.ID, one.ID, id)
	}
	_, end := r.Process(within(t), consumer.Topic(), consumer.Channel(), &d.Message)
	end(d.Finish())
	if got := r.span("process orders").Parent().SpanID(); got != r.span("send orders").SpanContext().SpanID() {
		t.Errorf("the span is a child of %v", got)
	}
	r.expectMetric("messaging.client.consumed.messages messaging.destination.name=orders "+
		"messaging.destination.partition.id=0 messaging.destination.subscription.name=billing "+
		"messaging.operation.name=receive messaging.system=penstock", 1)
	if err := consumer.Close(within(t)); err != nil {
		t.Error(err)
	}
}
