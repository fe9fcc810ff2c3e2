package engine_test

import (
	"errors"
	"reflect"
	"testing"

	"penstock/engine"
)

// A program cannot write what only the engine writes: headers with the reserved prefix are refused by all ways to
// publish, and nothing in the options of a message says that it is trusted.
func TestReservedHeadersAreRefused(t *testing.T) {
	t.Parallel()
	topic, done := exampleTopic(1)
	defer done()
	reserved := engine.Header{Name: []byte("penstock-channel"), Value: []byte("c")}
	m := engine.Message{Body: []byte("b"), Headers: []engine.Header{reserved}}
	if _, err := topic.Publish(t.Context(), m); !errors.Is(err, engine.ErrHeaders) {
		t.Errorf("Publish: %v", err)
	}
	if _, err := topic.PublishBatch(t.Context(), []engine.Message{m}); !errors.Is(err, engine.ErrHeaders) {
		t.Errorf("PublishBatch: %v", err)
	}
	answer := make(chan error, 1)
	err := topic.PublishAsync(m, func(_ engine.ID, err error) { answer <- err })
	if err == nil {
		err = <-answer
	}
	if !errors.Is(err, engine.ErrHeaders) {
		t.Errorf("PublishAsync: %v", err)
	}
	var fields []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[engine.Message]()) {
		fields = append(fields, f.Name)
	}
	if len(fields) != 4 {
		t.Errorf("a Message has the fields %q: does the check of headers hold for each?", fields)
	}
}
