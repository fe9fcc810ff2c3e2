package clientotel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"penstock/client"
)

const (
	scope  = "penstock/client/otel" // of tracer and meter
	system = "penstock"

	sendName    = "send"
	receiveName = "receive"
	processName = "process"
)

// Options of a Telemetry. The zero value uses what the program has registered with OpenTelemetry.
type Options struct {
	TracerProvider trace.TracerProvider // nil: the global one
	MeterProvider  metric.MeterProvider // nil: the global one
	// Propagator writes the trace into the headers of messages and reads it from there. nil: traceparent and tracestate
	// of W3C Trace Context, and no baggage, which would be stored with each message.
	Propagator propagation.TextMapPropagator
}

// Telemetry makes the spans and metrics. A program needs one, for all its clients; any number of goroutines may use it.
// It holds no resources: there is nothing to close.
type Telemetry struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator

	sent        messagingconv.ClientSentMessages
	consumed    messagingconv.ClientConsumedMessages
	sendTime    messagingconv.ClientOperationDuration
	processTime messagingconv.ProcessDuration
	connections metric.Int64UpDownCounter

	mu     sync.RWMutex // guards places
	places map[place]attribute.Set
}

// maxPlaces bounds the places whose attributes are kept, so that a program that visits ever new channels does not grow.
const maxPlaces = 4096

// place is where a delivery came from.
type place struct {
	topic, channel string
	partition      uint32
}

// New makes a Telemetry. The error is one of the meter provider, which could not make an instrument.
func New(o Options) (*Telemetry, error) {
	if o.TracerProvider == nil {
		o.TracerProvider = api.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = api.GetMeterProvider()
	}
	if o.Propagator == nil {
		o.Propagator = propagation.TraceContext{}
	}
	meter := o.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	t := &Telemetry{
		tracer:     o.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		propagator: o.Propagator,
		places:     make(map[place]attribute.Set),
	}
	var errs [5]error
	t.sent, errs[0] = messagingconv.NewClientSentMessages(meter)
	t.sendTime, errs[1] = messagingconv.NewClientOperationDuration(meter)
	t.processTime, errs[2] = messagingconv.NewProcessDuration(meter)
	t.connections, errs[3] = meter.Int64UpDownCounter("penstock.client.connections", metric.WithUnit("{connection}"),
		metric.WithDescription("Connections of the client that a node has accepted."))
	t.consumed, errs[4] = messagingconv.NewClientConsumedMessages(meter)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("clientotel: the meter provider did not make an instrument; nothing is measured: %w", err)
	}
	return t, nil
}

// Hooks returns hooks that measure, and then call those of next:
//
//   - messaging.client.sent.messages counts the messages of batches, with error.type if they were not stored;
//   - messaging.client.operation.duration has, for each batch, the seconds since its first message was produced;
//   - messaging.client.consumed.messages counts the deliveries to consumers of channels;
//   - penstock.client.connections counts the connections of the client, with server.address and server.port.
//
// Messages that Produce refused were in no batch, and are not counted.
func (t *Telemetry) Hooks(next client.Hooks) client.Hooks {
	hooks := next
	hooks.Produced = func(b client.ProducedBatch) {
		t.produced(&b)
		if next.Produced != nil {
			next.Produced(b)
		}
	}
	hooks.Delivered = func(topic, channel string, d client.Delivery) {
		t.consumed.AddSet(context.Background(), 1, t.about(place{topic, channel, d.ID.Partition()}))
		if next.Delivered != nil {
			next.Delivered(topic, channel, d)
		}
	}
	hooks.Connected = func(address string) {
		t.connections.Add(context.Background(), 1, metric.WithAttributes(serverAttributes(address)...))
		if next.Connected != nil {
			next.Connected(address)
		}
	}
	hooks.Disconnected = func(address string, err error) {
		t.connections.Add(context.Background(), -1, metric.WithAttributes(serverAttributes(address)...))
		if next.Disconnected != nil {
			next.Disconnected(address, err)
		}
	}
	return hooks
}

func (t *Telemetry) produced(b *client.ProducedBatch) {
	ctx := context.Background()
	more := []attribute.KeyValue{semconv.MessagingDestinationName(b.Topic), partitionAttribute(b.Partition)}
	if b.Err != nil {
		more = append(more, semconv.ErrorTypeKey.String(errorType(b.Err)))
	}
	t.sent.Add(ctx, int64(b.Count), sendName, system, more...)
	more = append(more, semconv.MessagingOperationTypeSend)
	t.sendTime.Record(ctx, b.Took.Seconds(), sendName, system, more...)
}

// about returns the attributes of a delivery, which are made once for each partition of a channel.
func (t *Telemetry) about(p place) attribute.Set {
	t.mu.RLock()
	set, ok := t.places[p]
	t.mu.RUnlock()
	if ok {
		return set
	}
	set = attribute.NewSet(semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(receiveName),
		semconv.MessagingDestinationName(p.topic), semconv.MessagingDestinationSubscriptionName(p.channel),
		partitionAttribute(int(p.partition)))
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.places) >= maxPlaces {
		clear(t.places) // most of them may be of channels that are gone; what is used is made again
	}
	t.places[p] = set
	return set
}
