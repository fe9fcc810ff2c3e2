package campaign

import (
	"bufio"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"

	"penstock/tools/sim/world"
)

// Found is one row of the table of what was found lately: how many mistakes, in worlds with these features.
type Found struct {
	Count int
	With  world.Feature
}

//go:embed found.txt
var foundText string

// FoundLately is the table in this package's found.txt.
func FoundLately() ([]Found, error) { return ParseFound(foundText) }

// ParseFound reads such a table: a count and features with commas on each line, and comments behind #.
func ParseFound(text string) (table []Found, err error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		var f Found
		var names string
		if _, err := fmt.Sscanf(line, "%d %s", &f.Count, &names); err != nil || f.Count < 1 {
			return nil, fmt.Errorf("%q: want a count and features", line)
		}
		if f.With, err = world.ParseFeatures(names); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		table = append(table, f)
	}
	return table, nil
}

// Picker chooses which of the seeds that it takes are run. Every second one, by chance, is the next seed, whatever it
// draws. For the others it draws a row of the table by weight, and leaves seeds out until one draws the row's features:
// a world is always the one that its seed makes by itself. One goroutine uses it.
type Picker struct {
	Take  func() (seed uint64, err error)
	Table []Found       // empty: every seed is run
	With  world.Feature // every seed that is run draws these
	Draws func(seed uint64) world.Feature
}

// maxSkipped is how many seeds are left out for one row: the rarest features come once in a few hundred seeds.
const maxSkipped = 20_000

// Next returns the next seed to run and the features for which it was chosen; 0: it was the next one.
func (p *Picker) Next() (seed uint64, chosen world.Feature, err error) {
	if seed, err = p.Take(); err != nil {
		return 0, 0, err
	}
	want := p.With
	if r := rand.New(rand.NewPCG(seed, 0xa0761d6478bd642f)); want == 0 && len(p.Table) > 0 && r.IntN(2) == 0 {
		want = p.row(r)
	}
	if want == 0 {
		return seed, 0, nil
	}
	for skipped := 0; p.Draws(seed)&want != want; skipped++ {
		if skipped == maxSkipped {
			return 0, 0, fmt.Errorf("none of %d seeds draws %v: its features exclude each other", skipped, want)
		}
		if seed, err = p.Take(); err != nil {
			return 0, 0, err
		}
	}
	return seed, want, nil
}

// row draws a row of the table by its count.
func (p *Picker) row(r *rand.Rand) world.Feature {
	sum := 0
	for _, f := range p.Table {
		sum += f.Count
	}
	at := r.IntN(sum)
	for _, f := range p.Table {
		if at -= f.Count; at < 0 {
			return f.With
		}
	}
	panic("BUG: campaign: the rows' counts are less than their sum")
}
