package history

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
)

func TestRecorderKeepsOneFilePerClient(t *testing.T) {
	dir := t.TempDir()
	r := NewRecorder(dir)
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			for seq := range uint64(500) {
				r.Add(Event{Client: fmt.Sprintf("p%d", i), Op: Publish, Topic: "t", Seq: seq + 1})
				r.Add(Event{Client: fmt.Sprintf("p%d", i), Op: OK, Seq: seq + 1})
			}
		})
	}
	clients.Wait()
	want := r.Events()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	got, err := Read(dir)
	if err != nil || len(files) != 4 || len(got) != 4000 {
		t.Fatalf("%d files, %d events, %v", len(files), len(got), err)
	}
	for i := range want {
		if got[i].At < want[max(i-1, 0)].At {
			t.Fatalf("event %d is out of order", i)
		}
	}
	if a, b := Check(want, Options{}), Check(got, Options{}); !reflect.DeepEqual(a.Counts, b.Counts) || a.Acked != 2000 ||
		b.Acked != 2000 {
		t.Errorf("memory and files differ: %+v, %+v", a, b)
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"{\"at\":1,\"clent\":\"p\"}\n", "{\"at\":1,\"client\":\"p\"", "7\n"} {
		if err := os.WriteFile(filepath.Join(dir, "p.jsonl"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if events, err := Read(dir); err == nil {
			t.Errorf("%q is read as %v", text, events)
		}
	}
}

func TestRecorderSaysThatItCannotWrite(t *testing.T) {
	r := NewRecorder(filepath.Join(t.TempDir(), "missing"))
	r.Add(Event{Client: "p", Op: Note})
	if err := r.Close(); err == nil {
		t.Error("no error")
	}
}

func TestBody(t *testing.T) {
	seen := map[string]bool{}
	for _, size := range []int{0, 20, MinBodyBytes, 100, 5000} {
		for seq := range uint64(50) {
			b := Body("p7", seq, size)
			client, got, ok := ParseBody(b)
			if !ok || client != "p7" || got != seq || len(b) < size || len(b) > max(size, MinBodyBytes) {
				t.Fatalf("size %d: %q is %s %d %v", size, b, client, got, ok)
			}
			seen[string(b)] = true
			for i := range min(len(b), 200) {
				b[i] ^= 1
				if _, _, ok := ParseBody(b); ok {
					t.Fatalf("byte %d may change: %q", i, b)
				}
				b[i] ^= 1
			}
		}
	}
	for _, b := range []string{"", "p/1/", "p/x/00000000", "\x00\x00\x00\x00\x00\x00\x00\x00"} {
		if _, _, ok := ParseBody([]byte(b)); ok {
			t.Errorf("%q is a body", b)
		}
	}
}
