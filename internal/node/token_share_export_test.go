package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/segment/aio"
)

// ForgetMaker writes a topic's topic.json as a version does that does not know who made it.
func ForgetMaker(t testing.TB, e *Engine, name string) {
	t.Helper()
	topic, _ := e.Catalog().LookupTopic(name)
	m := topic.File()
	m.MadeBy = ""
	if err := e.catalog.WriteFile(m); err != nil {
		t.Fatal(err)
	}
}

// Creating lets a token be at the creation of a topic, until done is called.
func Creating(e *Engine, token, name string, partitions int) (done func()) {
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = e.catalog.Make(context.Background(), name, token, partitions, func() (*Topic, error) {
			close(begun)
			<-end
			return nil, errs.ErrTopicOptions
		})
	}()
	<-begun
	return func() {
		close(end)
		<-ended
	}
}

// Growing lets a topic be at its growth to so many partitions, until done is called.
func Growing(t testing.TB, e *Engine, topic *Topic, to int) (done func()) {
	t.Helper()
	done, err := e.catalog.Grow(topic, to, "")
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// StoredMakers returns the topics of a data directory with the tokens that made them, a line each.
func StoredMakers(t testing.TB, disk aio.Disk) string {
	t.Helper()
	each := func(n int, do func(i int)) {
		for i := range n {
			do(i)
		}
	}
	all, err := datadir.ListTopics(disk, slog.Default(), each, func(name string, err error) {
		t.Errorf("%s: %v", name, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i := range all {
		lines = append(lines, fmt.Sprintln(all[i].Name, all[i].MadeBy))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
