package node_test

import (
	"errors"
	"path"
	"strings"
	"sync"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
)

// duringFailover accepts the errors that a producer may get while its partition has no leader, or its node ends.
func duringFailover(err error) bool {
	for _, may := range []error{
		errs.ErrUnknown, errs.ErrNoLeader, errs.ErrDisk, errs.ErrClosed, errs.ErrNoQuorum,
	} {
		if errors.Is(err, may) {
			return true
		}
	}
	return false
}

// After an orderly stop of all nodes their segment files are equal byte by byte, and the next start has all stored
// messages.
//
// B1, B79, B94.
func TestClusterSegments(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	stop := tc.startProducer(h, tc.nodes[0], "t", "p", never)
	tc.eventually("several segments are full", func() bool {
		c, _ := node.StateOf(tc.nodes[0].e, "t", 0)
		return c.Segments > 3
	})
	stop()
	tc.awaitEqualCopies("t", 0)
	dir := path.Join(node.TopicDir(tc.nodes[0].e, "t"), "0")
	var wg sync.WaitGroup
	for _, m := range tc.nodes {
		tc.kv.Cut(m.client) // no leadership is handed over: that would write more
	}
	for _, m := range tc.nodes {
		wg.Go(func() {
			_ = m.e.Close()
			m.e, m.disk = nil, m.disk.Kill(1)
		})
	}
	wg.Wait()
	var first map[string]string
	for _, m := range tc.nodes {
		files := segmentBytes(t, m.disk, dir)
		if first == nil {
			first = files
		}
		if len(files) < 3 || len(files) != len(first) {
			t.Errorf("%s has %d segments, the first node %d", m.name, len(files), len(first))
		}
		for name, data := range files {
			if data != first[name] {
				t.Errorf("%s: %s differs", m.name, name)
			}
		}
	}
	tc.startAll()
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}

// segmentBytes returns the contents of the segments in a directory, by file name.
func segmentBytes(t *testing.T, d *faultaio.Disk, dir string) map[string]string {
	t.Helper()
	list, err := d.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range list {
		if !strings.HasSuffix(f.Name(), ".seg") {
			continue
		}
		data, err := d.ReadFile(path.Join(dir, f.Name()), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name()] = string(data)
	}
	return files
}
