package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// again decodes p, and checks that what was read is written and read again as the same message.
func again(t *testing.T, p []byte, m Payload) {
	if err := Decode(p, m); err != nil {
		if !errors.Is(err, ErrInvalid) {
			t.Fatalf("%T: untyped error %v", m, err)
		}
		return
	}
	written := Append(nil, m)
	if !bytes.HasPrefix(p, written) {
		t.Fatalf("%T: read from\n% x\nand written as\n% x", m, p, written)
	}
	second := fresh(m)
	if err := Decode(written, second); err != nil || !reflect.DeepEqual(m, second) {
		t.Fatalf("%T: %+v is read again as %+v, %v", m, m, second, err)
	}
}

// fuzz gives arbitrary payloads to the decoder of messages like m.
func fuzz(f *testing.F, m Payload) {
	for _, s := range samples(f) {
		if reflect.TypeOf(s.m) == reflect.TypeOf(m) {
			f.Add(Append(nil, s.m))
		}
	}
	f.Add(Append(nil, m))
	f.Fuzz(func(t *testing.T, p []byte) { again(t, p, fresh(m)) })
}

func FuzzAuth(f *testing.F)            { fuzz(f, &Auth{}) }
func FuzzOutcome(f *testing.F)         { fuzz(f, &Outcome{}) }
func FuzzMetadataRequest(f *testing.F) { fuzz(f, &MetadataRequest{}) }
func FuzzMetadata(f *testing.F)        { fuzz(f, &Metadata{}) }
func FuzzOpenProducer(f *testing.F)    { fuzz(f, &OpenProducer{}) }
func FuzzProducer(f *testing.F)        { fuzz(f, &Producer{}) }
func FuzzProduce(f *testing.F)         { fuzz(f, &Produce{}) }
func FuzzProduced(f *testing.F)        { fuzz(f, &Produced{}) }
func FuzzRead(f *testing.F)            { fuzz(f, &Read{}) }
func FuzzRecords(f *testing.F)         { fuzz(f, &Records{}) }
func FuzzReadCredit(f *testing.F)      { fuzz(f, &ReadCredit{}) }
func FuzzSubscribe(f *testing.F)       { fuzz(f, &Subscribe{}) }
func FuzzSubscribed(f *testing.F)      { fuzz(f, &Subscribed{}) }
func FuzzDeliver(f *testing.F)         { fuzz(f, &Deliver{}) }
func FuzzCredit(f *testing.F)          { fuzz(f, &Credit{}) }
func FuzzHandles(f *testing.F)         { fuzz(f, &Handles{}) }
func FuzzFinishThrough(f *testing.F)   { fuzz(f, &FinishThrough{}) }
func FuzzRequeue(f *testing.F)         { fuzz(f, &Requeue{}) }
func FuzzRefused(f *testing.F)         { fuzz(f, &Refused{}) }
func FuzzDeliverOrdered(f *testing.F)  { fuzz(f, &DeliverOrdered{}) }
func FuzzRecall(f *testing.F)          { fuzz(f, &Recall{}) }
func FuzzSync(f *testing.F)            { fuzz(f, &Sync{}) }
