package world

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Regression is a run that has found a mistake once, as testdata/seeds.txt lists it.
type Regression struct {
	Seed   uint64
	Config Config
	Always bool // the ordinary tests run it, too
}

//go:embed testdata/seeds.txt
var regressionsText string

// Regressions lists all of them, in the order in which they were found.
var Regressions = sync.OnceValues(func() ([]Regression, error) { return parseRegressions(regressionsText) })

func parseRegressions(text string) (list []Regression, err error) {
	for line := range strings.SplitSeq(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var g Regression
		g.Seed, err = strconv.ParseUint(words[0], 10, 64)
		if err == nil && len(words) > 1 && words[1] != "drawn" { // by the seed itself
			g.Config.Features, err = ParseFeatures(words[1])
		}
		for _, word := range words[min(len(words), 2):] {
			switch word {
			case "small-segments":
				g.Config.SmallSegments = true
			case "always":
				g.Always = true
			default:
				err = fmt.Errorf("%q is no word of this list", word)
			}
		}
		if err != nil || len(words) < 2 {
			return nil, fmt.Errorf("seeds.txt: %q: want a seed, its features, and perhaps small-segments and always (%v)",
				line, err)
		}
		list = append(list, g)
	}
	return list, nil
}
