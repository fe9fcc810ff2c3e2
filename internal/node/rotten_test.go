package node

import (
	"strings"
	"testing"
	"time"

	"penstock/tests/support/faultaio"
	"penstock/tests/support/patience"
)

// A node is not healthy as long as a file of the commit log is damaged. If that is the current file, the node goes on
// in another one.
func TestRottenFileIsReplaced(t *testing.T) {
	e := openSmall(t, faultaio.New(faultaio.Options{}))
	topic, err := e.Topic(t.Context(), "t")
	if err == nil {
		_, err = topic.PublishMessage(t.Context(), Outgoing{Body: []byte("m")})
	}
	if err != nil {
		t.Fatal(err)
	}
	release := e.store.Flusher().PinFiles()
	file := e.store.CommitLog().Current()
	for range 3 {
		e.store.Flusher().MarkRotten(file)
		if err := e.Health(); err == nil || !strings.Contains(err.Error(), "commit log") {
			t.Fatalf("the file is there: %v", err)
		}
	}
	release()
	for end := time.Now().Add(patience.Or(time.Minute)); e.Health() != nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := e.Health(); err != nil || e.store.CommitLog().OldestKept() <= file {
		t.Errorf("%v, and file %d is kept", err, e.store.CommitLog().OldestKept())
	}
}
