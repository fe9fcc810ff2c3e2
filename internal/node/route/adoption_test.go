package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/segment"
)

// A transcript of an Adoption. serve E0 E1 ...: the node serves the partitions in these epochs. Each output line says
// which partitions the channels may keep (-: nothing changes) and which they are given. stale N: a channel has
// partition N from another epoch. again N: the channels may lack partition N.
func adoptionScript(t *testing.T, lines string) string {
	t.Helper()
	var a Adoption
	var out []string
	stale := -1
	for line := range strings.SplitSeq(lines, ",") {
		words := strings.Fields(line)
		var numbers []segment.Epoch
		for _, word := range words[1:] {
			var n segment.Epoch
			if _, err := fmt.Sscan(word, &n); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			numbers = append(numbers, n)
		}
		switch words[0] {
		case "stale":
			stale = int(numbers[0])
		case "again":
			a.Again(int(numbers[0]))
		case "serve":
			keep := "-"
			if stays, any := a.Revoke(numbers, func(i int) bool { return i == stale }); any {
				keep = fmt.Sprint(stays)
			}
			stale = -1
			out = append(out, fmt.Sprintf("%s %v", keep, a.Adopt(numbers)))
			for i, epoch := range numbers {
				if a.Epoch(i, epoch) != epoch || epoch != 0 && a.Epoch(i, epoch+1) != 0 {
					t.Errorf("after %q the channels have partition %d in epoch %d", line, i, a.Epoch(i, epoch))
				}
			}
		default:
			t.Fatalf("line %q", line)
		}
	}
	return strings.Join(out, ", ")
}

func TestAdoption(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"partitions come one after the other", "serve 0 0, serve 1 0, serve 1 4, serve 1 4", "- [], - [0], - [1], - []"},
		{"one is lost", "serve 1 4, serve 0 4", "- [0 1], [false true] [1]"},
		{"one comes back in a newer epoch", "serve 1 4, serve 3 4", "- [0 1], [false true] [0 1]"},
		{"all are lost", "serve 1 4, serve 0 0, serve 2 0", "- [0 1], [false false] [], - [0]"},
		{"the topic grows", "serve 1, serve 1 5", "- [0], - [1]"},
		{"a channel was made meanwhile", "serve 1 4, stale 1, serve 1 4", "- [0 1], [true false] [0 1]"},
		{"a channel lacks one", "serve 1 4, again 1, serve 1 4", "- [0 1], - [1]"},
		{"a channel lacks one that nobody knows", "again 3, serve 1", "- [0]"},
	} {
		if got := adoptionScript(t, c.lines); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	var a Adoption
	a.Revoke([]segment.Epoch{7}, func(int) bool { return false })
	if a.Adopt([]segment.Epoch{7, 8}); !slices.Equal(a.Epochs(), []segment.Epoch{7}) {
		t.Errorf("a partition that Revoke was not told of is adopted: %v", a.Epochs())
	}
}
