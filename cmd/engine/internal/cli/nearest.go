package cli

// nearest returns the known name that is the fewest single-character edits away from name, or "" if none is near: a
// name that shares little with the one that was given explains nothing.
func nearest(name string, known []string) string {
	best, bestEdits := "", maxEdits(name)+1
	for _, k := range known {
		if d := edits(name, k); d < bestEdits {
			best, bestEdits = k, d
		}
	}
	return best
}

// maxEdits is the largest number of edits at which a name counts as a misspelling of another.
func maxEdits(name string) int { return max(1, len(name)/3) }

// OrNearest continues the sentence about an unknown name with the nearest known one, if there is one.
func OrNearest(name, prefix string, known []string) string {
	near := nearest(name, known)
	if near == "" {
		return ""
	}
	return "; the nearest one is " + prefix + near
}

// edits returns the Levenshtein distance between a and b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
