package backup

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"penstock/internal/node/datadir"
	"penstock/segment"
)

// Difference is a file of a backup that is not what its manifest says.
type Difference struct {
	File  string `json:"file"`
	Why   string `json:"why"`
	Means string `json:"means"` // for the data
}

// maxNamed bounds the files, and the ranges, that one text names.
const maxNamed = 20

// DamagedError says why a backup is not restored as a whole: these files differ, and these messages do not read back.
type DamagedError struct {
	Differ  []Difference
	Missing []Missing
}

func (e *DamagedError) Error() string {
	var b strings.Builder
	for i, d := range e.Differ {
		if i == maxNamed {
			fmt.Fprintf(&b, "%d more files are damaged; ", len(e.Differ)-i)
			break
		}
		fmt.Fprintf(&b, "%s of the backup is damaged (%s): %s; ", d.File, d.Why, d.Means)
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(&b, "what does not verify: %s; ", Named(e.Missing))
	}
	return b.String() + "restore another backup, or what verifies of this one, without the rest (--accept-loss)"
}

// Named names ranges in one line.
func Named(all []Missing) string {
	var texts []string
	for i := range all {
		if i == maxNamed {
			texts = append(texts, fmt.Sprintf("%d more ranges", len(all)-i))
			break
		}
		texts = append(texts, all[i].String())
	}
	return strings.Join(texts, "; ")
}

// differs notes a file that is not what the manifest says.
func (r *restoring) differs(name, why string) {
	why = strings.TrimPrefix(why, damaged(name, "").Error())
	r.differ = append(r.differ, Difference{File: name, Why: why})
}

// judge returns a DamagedError if anything does not verify and the caller does not accept that.
func (r *restoring) judge() error {
	r.missing = r.Missing(topicNames(r.to))
	for i := range r.m.Missing { // a file that the node could not read is not in the backup
		if m := &r.m.Missing[i]; !r.has(m.File) && !slices.ContainsFunc(r.missing, m.overlaps) {
			r.missing = append(r.missing, *m)
		}
	}
	for i := range r.differ {
		d := &r.differ[i]
		d.Means = r.means(d.File)
	}
	if r.o.AcceptLoss || len(r.differ)+len(r.missing) == 0 {
		return nil
	}
	return &DamagedError{r.differ, r.missing}
}

func (m *Missing) overlaps(o Missing) bool {
	return m.Identity() == o.Identity() && m.From < o.To && o.From < m.To
}

func (r *restoring) has(name string) bool {
	return slices.ContainsFunc(r.m.Files, func(f File) bool { return f.Name == name })
}

// means says what a damaged file means for the data.
func (r *restoring) means(name string) string {
	switch {
	case name == datadir.ShortenedFile:
		return "nothing is missing, because all copies of a restored node compare themselves with others anyway"
	case name == MetadataFile:
		return "the cluster's metadata is not in the backup, so it restores this node, not a whole cluster"
	case strings.HasPrefix(name, "clog/"):
		if r.logSays != "" {
			return "messages and confirmations of any partition that only the commit log had may be missing, and a single " +
				"node that is restored stores nothing new (" + r.logSays + ")"
		}
		return "the newest messages and confirmations of any partition may be missing"
	case path.Ext(name) == ".json":
		return r.meansTwice(name)
	}
	in := slices.DeleteFunc(slices.Clone(r.missing), func(m Missing) bool { return m.File != name })
	switch {
	case len(in) > 0:
		return "missing are " + Named(in)
	case r.segments.verifiers[name] != nil:
	case r.logSays != "":
		return "what of it is missing is not known, because the commit log cannot be read to its end"
	default:
		return "nothing is missing, because the commit log has what it holds, too"
	}
	return "no message in it is damaged"
}

// meansTwice is means for a file that has a second copy.
func (r *restoring) meansTwice(name string) string {
	first := strings.TrimSuffix(strings.TrimSuffix(name, ".json"), ".copy") + ".json"
	other := datadir.CopyOf(first)
	if name == other {
		other = first
	}
	lost := func(d Difference) bool { return d.File == other }
	if r.has(other) && !slices.ContainsFunc(r.differ, lost) {
		return "nothing is missing, because its second copy is whole"
	}
	return "its second copy is damaged, too: a single node that is restored keeps the topic's messages and does not " +
		"serve them"
}

// writeDamaged writes the list of what is missing, so that the node knows it from its start on.
func (r *restoring) writeDamaged() error {
	if len(r.missing) == 0 {
		return nil
	}
	list := make([]datadir.DamagedPlace, 0, len(r.missing))
	for i := range r.missing {
		m := &r.missing[i]
		list = append(list, datadir.DamagedPlace{Identity: segment.Identity{
			Topic: m.TopicID, Partition: m.Partition,
		}, From: m.From})
	}
	data, err := datadir.SealFile(datadir.NewDamaged(list))
	if err != nil {
		return err
	}
	return r.Write(datadir.DamagedFile, data)
}
