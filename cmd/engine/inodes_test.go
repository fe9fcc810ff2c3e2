package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/devcluster"
)

// inodeHog takes inodes of the file system that dir is on.
type inodeHog struct {
	t     *testing.T
	dir   string
	count int
}

// take makes files until so many inodes are left; below 0: as many as it gets.
func (h *inodeHog) take(left int) {
	h.t.Helper()
	must(h.t, os.MkdirAll(h.dir, 0o700))
	var st syscall.Statfs_t
	for {
		must(h.t, syscall.Statfs(h.dir, &st))
		if int(st.Ffree) <= left {
			return
		}
		f, err := os.Create(filepath.Join(h.dir, fmt.Sprint(h.count+1)))
		if errors.Is(err, syscall.ENOSPC) {
			return
		}
		must(h.t, err)
		must(h.t, f.Close())
		h.count++
	}
}

// give gives so many inodes back.
func (h *inodeHog) give(n int) {
	h.t.Helper()
	for range n {
		must(h.t, os.Remove(filepath.Join(h.dir, fmt.Sprint(h.count))))
		h.count--
	}
}

// Without inodes a node goes on with what it has. It refuses new topics while those that exist may still need inodes,
// says what is missing by its name, starts again, deletes, and publishes again when there are inodes.
func TestNoInodes(t *testing.T) {
	t.Parallel()
	mnt := tmpfs(t, "size=1g,nr_inodes=150")
	dir, hog := filepath.Join(mnt, "data"), &inodeHog{t: t, dir: filepath.Join(mnt, "others")}
	args := []string{"--commit-file-bytes", "16MiB", "--commit-live-bytes", "33MiB", "--publish-timeout", "1s"}
	p := startNode(t, dir, args...)
	if _, err := os.Stat(filepath.Join(dir, "trash")); err != nil {
		t.Errorf("the trash is not made with the directory: %v", err)
	}
	node := func(args ...string) outcome { return execute(t, append(args, "--http-address", p.http)...) }
	node("topic", "create", "orders").well(t)
	node("channel", "create", "orders", "all").well(t)
	node("topic", "create", "unneeded").well(t)

	hog.take(20)
	if o := node("topic", "create", "more"); o.code == 0 || !strings.Contains(o.stderr, "so few inodes left") {
		t.Errorf("a new topic takes the last inodes: %+v", o)
	}
	publish := func() string {
		body := strings.NewReader(strings.Repeat("x", 900_000))
		reply, err := http.Post("http://"+p.http+"/pub?topic=orders", "application/octet-stream", body)
		must(t, err)
		defer reply.Body.Close()
		answer, err := io.ReadAll(reply.Body)
		must(t, err)
		if reply.StatusCode == http.StatusOK {
			return ""
		}
		return string(answer)
	}
	if refusal := publish(); refusal != "" {
		t.Errorf("a topic that exists is refused: %s", refusal)
	}

	hog.take(-1)
	refusal := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(refusal, "no inodes left"); refusal = publish() {
		if time.Now().After(end) {
			t.Fatalf("nobody says that there are no inodes (%q):\n%s", refusal, p.log)
		}
	}
	if strings.Contains(refusal, "the disk is full") {
		t.Errorf("a publisher is told that the disk is full: %s", refusal)
	}
	row := rowOf(t, "no inodes")
	checkAlert(t, row)
	w := &stateWorld{t: t, nodes: map[string]devcluster.Node{"n1": {HTTP: p.http}}, dead: map[string]bool{}}
	for _, surface := range []string{"health", "metric"} { // the others show what health says
		if !w.shows(surface, row.shows[surface]) {
			t.Errorf("%s does not say %q", surface, row.shows[surface])
		}
	}

	// A restart goes on in the same way.
	p.end(syscall.SIGTERM)
	hog.take(-1)
	p = startNode(t, dir, args...)
	w.nodes["n1"] = devcluster.Node{HTTP: p.http}
	for end := time.Now().Add(time.Minute); publish() == ""; {
		if time.Now().After(end) {
			t.Fatal("it publishes without inodes")
		}
	}

	// With as many as the node keeps for itself, topics can be deleted, which gives more back.
	hog.give(20)
	if o := node("topic", "delete", "unneeded"); o.code != 0 {
		t.Fatalf("deleting: %+v\n%s", o, p.log)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		topics, err := filepath.Glob(filepath.Join(dir, "topics", "*"))
		must(t, err)
		trash, err := filepath.Glob(filepath.Join(dir, "trash", "*"))
		must(t, err)
		if len(topics)+len(trash) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the deleted topic takes inodes: %v %v", topics, trash)
		}
	}
	must(t, os.RemoveAll(hog.dir))
	for end := time.Now().Add(time.Minute); publish() != ""; {
		if time.Now().After(end) {
			t.Fatalf("publishing does not resume:\n%s", p.log)
		}
	}
	if w.shows("health", row.shows["health"]) {
		t.Error("health says it still")
	}
	node("topic", "create", "more").well(t)
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
