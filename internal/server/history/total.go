package history

import (
	"math"
	"slices"
	"strings"
)

// Part is what Total gets of one node.
type Part struct {
	Series
	// Dead: the series is what others kept, and gets no further points.
	Dead bool
	// Unknown: there is no series, and until this second the node may have done something; 0: there is one.
	Unknown int64
}

// settle is how long after a node's last point it may still be nobody who serves what the node led.
const settle = 2 // points

// Total adds up what all nodes remember; of ages and percentiles it has the greatest. A point is missing where a node
// has none that must have been there: while it was away for so short a time that nobody else had its part yet, or while
// what it knew is nowhere. So a node that dies, or comes back, changes no sum of the past. The last point is the newest
// that all living nodes have: half a sum would look like a fall.
func Total(parts []Part) Series {
	out := Series{Fields: map[string]Points{}}
	end := int64(math.MaxInt64)
	for i := range parts {
		if p := &parts[i]; p.Unknown == 0 {
			out.Step = p.Step
			if !p.Dead {
				end = min(end, p.From+int64(Length-1)*int64(p.Step))
			}
		}
	}
	if out.Step == 0 || end == math.MaxInt64 {
		return out
	}
	out.From = end - int64(Length-1)*int64(out.Step)
	for i := range Length {
		t := out.From + int64(i*out.Step)
		missing := slices.ContainsFunc(parts, func(p Part) bool { return p.missing(t, int64(out.Step)) })
		known := slices.ContainsFunc(parts, func(p Part) bool { return p.Unknown == 0 && (p.Known == nil || p.knows(t)) })
		switch last := len(out.Known) - 1; {
		case missing || !known:
		case last >= 0 && out.Known[last][1] == t-int64(out.Step):
			out.Known[last][1] = t
		default:
			out.Known = append(out.Known, [2]int64{t, t})
		}
		for j := range parts {
			for name, points := range parts[j].Fields {
				if out.Fields[name] == nil {
					out.Fields[name] = make(Points, Length)
					for k := range Length {
						out.Fields[name][k] = float32(math.NaN())
					}
				}
				if v := parts[j].value(points, t); !missing && !math.IsNaN(float64(v)) {
					out.Fields[name][i] = joined(name, out.Fields[name][i], v)
				}
			}
		}
	}
	return out
}

func joined(field string, sum, v float32) float32 {
	switch {
	case math.IsNaN(float64(sum)):
		return v
	case strings.HasSuffix(field, "_ms") || strings.HasSuffix(field, "_seconds"):
		return max(sum, v)
	}
	return sum + v
}

// value returns a point; NaN: there is none.
func (p *Part) value(points Points, t int64) float32 {
	if i := (t - p.From) / int64(max(1, p.Step)); t >= p.From && i < int64(len(points)) {
		return points[i]
	}
	return float32(math.NaN())
}

// missing says whether the node's part of a sum is not known.
func (p *Part) missing(t, step int64) bool {
	if p.Unknown != 0 {
		return t <= p.Unknown+settle*step
	}
	if p.Known == nil || p.knows(t) {
		return false // an older version does not say when it has looked
	}
	for i := range int64(settle) {
		if p.knows(t - (i+1)*step) {
			return true
		}
	}
	return false
}

func (p *Part) knows(t int64) bool {
	return slices.ContainsFunc(p.Known, func(r [2]int64) bool { return r[0] <= t && t <= r[1] })
}
