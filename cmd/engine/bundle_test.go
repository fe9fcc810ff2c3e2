package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/operate"
)

// readBundle returns the files of a bundle, without its directory, and its manifest. It checks every sum.
func readBundle(t *testing.T, name string) (files map[string][]byte, m operate.BundleManifest) {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	must(t, err)
	files = map[string][]byte{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		_, inside, _ := strings.Cut(h.Name, "/")
		files[inside], err = io.ReadAll(r)
		must(t, err)
	}
	must(t, json.Unmarshal(files["manifest.json"], &m))
	for _, n := range m.Nodes {
		for _, p := range n.Parts {
			data, ok := files[n.Name+"/"+p.File]
			sum := sha256.Sum256(data)
			switch {
			case ok != (p.Error == "" && !p.None):
				t.Errorf("%s/%s: in the bundle: %v, in the manifest: %+v", n.Name, p.File, ok, p)
			case p.Error != "":
				if got := string(files[n.Name+"/"+p.File+".error.txt"]); got != p.Error+"\n" {
					t.Errorf("%s/%s: the reason is %q", n.Name, p.File, got)
				}
			case ok && (p.SHA256 != hex.EncodeToString(sum[:]) || p.Bytes != len(data) || p.At.Before(m.Began)):
				t.Errorf("%s/%s: %+v", n.Name, p.File, p)
			}
		}
	}
	return files, m
}

// A bundle of a real node has what the node says of itself, and no secret and no message.
func TestDebugBundle(t *testing.T) {
	dir := t.TempDir()
	tokens, token := filepath.Join(dir, "tokens.toml"), filepath.Join(dir, "token")
	config := filepath.Join(dir, "engine.toml")
	must(t, os.WriteFile(config, []byte("etcd_password = \"s3cret-of-etcd\"\n"), 0o600))
	must(t, os.WriteFile(token, []byte("s3cret-of-ops\n"), 0o600))
	must(t, os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"ops\"\nsha256 = \"%x\"\n[[token.grant]]\n"+
		"topics = [\"*\"]\nchannels = [\"*\"]\npermissions = [\"publish\", \"subscribe\", \"admin\", \"view\"]\n"+
		"[[token]]\nname = \"few\"\nsha256 = \"%x\"\n[[token.grant]]\ntopics = [\"orders\"]\npermissions = [\"view\"]\n",
		sha256.Sum256([]byte("s3cret-of-ops")), sha256.Sum256([]byte("s3cret-of-few"))), 0o600))
	p := startNode(t, t.TempDir(), "--auth-file", tokens, "--config", config)
	t.Setenv("PENSTOCK_SERVER", p.http)
	steer(t, "topic", "create", "orders", "--token-file", token)
	steer(t, "bench", "pub", "--topic", "orders", "--messages", "3", "--token-file", token, "--nsq-address", p.nsq,
		"--keep-topic")
	name := filepath.Join(dir, "one.tar.gz")
	out := steer(t, "debug", "bundle", "-o", name, "--token-file", token, "--cpu-profile", "1s")
	if got := rows(out); got[0] != name+" is written" || len(got) != 3 || !strings.HasSuffix(got[2], "  -") {
		t.Errorf("it prints %q", got)
	}
	files, m := readBundle(t, name)
	for file, want := range map[string]string{
		"info.json": `"version"`, "readyz.txt": "readyz", "startupz.txt": "ok", "health.json": `"healthy"`,
		"stats.json": `"topic_name":"orders"`, "metrics.txt": "penstock_build_info", "audit.json": "orders",
		"goroutine.txt": "goroutine ", "mutex.txt": "mutex", "heap.pprof": "", "cpu.pprof": "", "config.json": `"auth_file"`,
	} {
		if got, ok := files["node/"+file]; !ok || len(got) == 0 || !strings.Contains(string(got), want) {
			t.Errorf("%s: %d bytes, %v; %q is missing", file, len(got), ok, want)
		}
	}
	if m.Partial != "" || len(m.Nodes) != 1 || m.MadeBy == "" {
		t.Errorf("%+v", m)
	}
	for file, data := range files {
		if bytes.Contains(data, []byte("s3cret")) {
			t.Errorf("%s has a secret", file)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
		t.Errorf("others can read it: %v, %v", info.Mode(), err)
	}
	execute(t, "debug", "bundle", "-o", name, "--token-file", token).check(t, cli.ExitUsage, "file exists")
	execute(t, "debug", "bundle", "--cpu-profile", "2h").check(t, cli.ExitUsage, "--cpu-profile is 0 to")

	// With less rights the bundle says what is missing, and has the rest.
	few := filepath.Join(dir, "few.tar.gz")
	t.Setenv("PENSTOCK_TOKEN", "s3cret-of-few")
	execute(t, "debug", "bundle", "-o", few, "--cpu-profile", "0").check(t, cli.ExitPartial,
		"the bundle is partial: node node: ")
	files, m = readBundle(t, few)
	if len(files["node/stats.json"]) == 0 || len(files["node/heap.pprof.error.txt"]) == 0 || m.Partial == "" {
		t.Errorf("%v, %+v", slices.Sorted(maps.Keys(files)), m)
	}
	if bytes.Contains(files["manifest.json"], []byte("s3cret")) {
		t.Error("the manifest has a secret")
	}
}

// If nothing answers, there is no bundle; a node that answers nothing but the first request still gives one.
func TestDebugBundleOfTheHalfDead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	dead := ln.Addr().String()
	must(t, ln.Close())
	name := filepath.Join(t.TempDir(), "b.tar.gz")
	execute(t, "debug", "bundle", "-o", name, "--http-address", dead).check(t, cli.ExitOther, "does not answer")
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is left: %v", err)
	}
	execute(t, "debug", "bundle", "--all", "--http-address", dead).check(t, cli.ExitOther, "without --all only this node")
}

// One of three nodes is dead: the bundle of all has the others, and names it.
func TestDebugBundleOfAll(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir())
	nodes := p.ready(3)
	name := filepath.Join(t.TempDir(), "all.tar.gz")
	o := execute(t, "debug", "bundle", "--all", "-o", name, "--cpu-profile", "0", "--http-address", nodes["n3"].HTTP)
	if _, m := readBundle(t, name); o.code != 0 || len(m.Nodes) != 3 || m.Nodes[1].Name != "n2" || m.Nodes[1].Error != "" {
		t.Errorf("of three: %+v, %q", o, m.Partial)
	}
	p.signal(nodes["n2"].PID, syscall.SIGKILL)
	p.says(fmt.Sprintf("node n2 (pid %d) ended", nodes["n2"].PID))
	name = filepath.Join(t.TempDir(), "two.tar.gz")
	o = execute(t, "debug", "bundle", "--all", "-o", name, "--cpu-profile", "0", "--json", "--http-address",
		nodes["n1"].HTTP)
	o.check(t, cli.ExitPartial, "the bundle is partial: node n2: ")
	files, m := readBundle(t, name)
	var printed operate.BundleManifest
	must(t, json.Unmarshal([]byte(o.stdout), &printed))
	if len(m.Nodes) != 3 || m.Nodes[1].Error == "" || len(m.Nodes[1].Parts) != 0 || len(printed.Nodes) != 3 {
		t.Errorf("%+v", m)
	}
	for _, n := range []string{"n1", "n3"} {
		if len(files[n+"/cluster-status.json"]) == 0 || len(files[n+"/stats.json"]) == 0 {
			t.Errorf("%s: %v", n, slices.Sorted(maps.Keys(files)))
		}
	}
}
