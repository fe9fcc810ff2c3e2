package definitions

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/cmd/engine/internal/operate"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/cluster/admin"
	"penstock/internal/jsonbody"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/node/names"
	"penstock/internal/node/topic"
)

// operator is cli.Operator with the commands of this package.
type operator struct{ cli.Operator }

const (
	// definitionsVersion is the version of the document. A document of another version is refused.
	definitionsVersion = 1
	// maxDefinitionsBytes bounds a document; one about 20,000 topics with three channels each has about 30 MB.
	maxDefinitionsBytes = 64 << 20
)

// definitions is the document of `penstock definitions`: which topics and channels there are, and their settings.
type definitions struct {
	Version int               `json:"version"`
	Topics  []topicDefinition `json:"topics"`

	// nodes is how many nodes there are that can hold replicas; 1: the node is in no cluster. Only what the node says has
	// it, not a document.
	nodes int
}

// topicDefinition is one topic. Version in its settings is not compared and not applied.
type topicDefinition struct {
	Name       string              `json:"name"`
	Partitions int                 `json:"partitions,omitzero"` // 0: the node's default for a new topic, else as it is
	Replicas   int                 `json:"replicas,omitzero"`   // likewise; left out by a node that is in no cluster
	Settings   *meta.TopicSettings `json:"settings,omitempty"`  // nil: as they are
	Channels   []channelDefinition `json:"channels"`
}

type channelDefinition struct {
	Name     string                `json:"name"`
	Settings *fold.ChannelSettings `json:"settings,omitempty"`
}

// change is one step from what there is to what a document says.
type definitionChange struct {
	// create-topic, set-topic, set-replicas, create-channel, set-channel, delete-channel, delete-topic
	Action  string `json:"action"`
	Topic   string `json:"topic"`
	Channel string `json:"channel,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Done    bool   `json:"done"`

	topic   *topicDefinition
	channel *channelDefinition
}

func (c *definitionChange) String() string {
	name := c.Topic
	if c.Channel != "" {
		name += "/" + c.Channel
	}
	sign := map[bool]string{true: "-", false: "+"}[strings.HasPrefix(c.Action, "delete")]
	if strings.HasPrefix(c.Action, "set") {
		sign = "~"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", sign, strings.ReplaceAll(c.Action, "-", " "), name, c.Detail))
}

// Command has the commands of penstock definitions below it.
func Command() *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "definitions",
		Short: "Export and apply topics, channels and their settings as one document",
	}
	o.Flags(cmd)
	cmd.AddCommand(o.definitionsExport(), o.definitionsApply())
	return cmd
}

func (o *operator) definitionsExport() *cobra.Command {
	format := "json"
	cmd := o.Action("export", "Print all topics and channels with their settings", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			d, err := o.definitions(ctx)
			if err != nil {
				return err
			}
			if format == "json" || o.AsJSON {
				return cli.PrintJSON(o.Out, d)
			}
			data, err := json.Marshal(d)
			if err != nil {
				return err
			}
			var plain map[string]any
			dec := json.NewDecoder(bytes.NewReader(data))
			dec.UseNumber()
			if err := dec.Decode(&plain); err != nil {
				return err
			}
			return toml.NewEncoder(o.Out).Encode(numbers(plain))
		})
	cmd.Flags().Var(values.Choice(&format, "json", "toml"), "format", "format of the document: json or toml")
	cli.CompletesChoices(cmd)
	return cmd
}

// numbers turns the numbers of decoded JSON into those of TOML, and leaves out null.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
	case map[string]any:
		for k, e := range v {
			if e == nil {
				delete(v, k)
				continue
			}
			v[k] = numbers(e)
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	}
	return v
}

// definitions asks the node for everything that a document has.
func (o *operator) definitions(ctx context.Context) (*definitions, error) {
	all, missing, err := o.Topics(ctx)
	switch {
	case err != nil:
		return nil, err
	case missing != nil: // without the exit code of a partial result: nothing is printed
		return nil, fmt.Errorf("nothing was exported or changed, because a part of the definitions would look like all of "+
			"them: %s", missing)
	}
	d := &definitions{Version: definitionsVersion, Topics: []topicDefinition{}}
	replicas, err := o.replicasOf(ctx, d)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if names.Ephemeral(all[i].Name) {
			continue
		}
		s, err := operate.TopicSettingsOf(ctx, &o.Client, all[i].Name)
		if err != nil {
			return nil, err
		}
		t := topicDefinition{
			Name: all[i].Name, Partitions: s.Partitions, Replicas: replicas[all[i].Name], Settings: s,
			Channels: []channelDefinition{},
		}
		// A topic that nobody configured shows the min_isr that follows from its replicas. In a document that would be an
		// order to keep it, however many replicas the topic gets.
		if s.Version == 0 && s.MinISR == new(meta.TopicSettings).WantedMinISR(t.Replicas) {
			s.MinISR = 0
		}
		s.Version, s.Partitions = 0, 0
		for _, c := range all[i].Channels {
			if names.Ephemeral(c.Name) {
				continue
			}
			set := new(fold.ChannelSettings)
			if err := o.Client.Get(ctx, "/channel/settings", cli.QueryOf(t.Name, c.Name), set); err != nil {
				return nil, err
			}
			set.Version = 0
			t.Channels = append(t.Channels, channelDefinition{c.Name, set})
		}
		d.Topics = append(d.Topics, t)
	}
	return d, nil
}

// replicasOf returns the number of replicas of each topic; nil if the node is in no cluster. It sets d.nodes.
func (o *operator) replicasOf(ctx context.Context, d *definitions) (map[string]int, error) {
	var st admin.Status
	var topics admin.Topics
	err := o.Client.Get(ctx, "/cluster/status", nil, &st)
	if errors.Is(err, client.ErrNoSuchRequest) {
		d.nodes = 1
		return nil, nil
	}
	if err == nil {
		err = o.Client.Get(ctx, "/cluster/topics", nil, &topics)
	}
	if err != nil {
		return nil, err
	}
	d.nodes = len(st.Nodes)
	all := make(map[string]int, len(topics.Topics))
	for i := range topics.Topics {
		all[topics.Topics[i].Name] = topics.Topics[i].Replicas
	}
	return all, nil
}

// readDefinitions reads a document, JSON or TOML, strictly: nothing is applied from one that is not wholly valid.
func readDefinitions(name string, stdin io.Reader) (*definitions, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("the definitions cannot be read; nothing was changed: %w", err)
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxDefinitionsBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the definitions cannot be read; nothing was changed: %w", err)
	case len(data) > maxDefinitionsBytes:
		return nil, fmt.Errorf("%s is larger than %s; nothing was changed", name, values.FormatBytes(maxDefinitionsBytes))
	}
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		var plain map[string]any
		if err := toml.Unmarshal(data, &plain); err != nil {
			return nil, fmt.Errorf("%s is neither a JSON object nor TOML; nothing was changed: %w", name, err)
		}
		if data, err = json.Marshal(plain); err != nil {
			return nil, err
		}
	}
	if data, err = operate.WithoutUnits(data); err != nil {
		return nil, fmt.Errorf("%s: %w; nothing was changed", name, err)
	}
	d := new(definitions)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, fmt.Errorf("%s holds no definitions as penstock definitions export prints them; nothing was changed: %s",
			name, jsonbody.Explain(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s goes on behind the definitions; nothing was changed", name)
	}
	return d, d.check()
}

// check says what is wrong with a document in itself.
func (d *definitions) check() error {
	if d.Version != definitionsVersion {
		return fmt.Errorf("the definitions have version %d; this program reads version %d; nothing was changed",
			d.Version, definitionsVersion)
	}
	topics := map[string]bool{}
	for i := range d.Topics {
		t := &d.Topics[i]
		switch {
		case !names.ValidTopic(t.Name) || names.Ephemeral(t.Name):
			return fmt.Errorf("%q cannot name a topic in definitions; nothing was changed", t.Name)
		case topics[t.Name]:
			return fmt.Errorf("topic %s is defined twice; nothing was changed", t.Name)
		case t.Replicas < 0 || t.Replicas > node.MaxReplicas:
			return fmt.Errorf("topic %s cannot have %d replicas: it can have 1 to %d; nothing was changed", t.Name, t.Replicas,
				node.MaxReplicas)
		case t.Partitions < 0 || t.Partitions > node.MaxPartitions:
			return fmt.Errorf("topic %s cannot have %d partitions; nothing was changed", t.Name, t.Partitions)
		}
		topics[t.Name] = true
		if t.Settings != nil {
			if err := t.Settings.Validate(); err != nil {
				return fmt.Errorf("topic %s: %w", t.Name, err)
			}
		}
		channels := map[string]bool{}
		for _, c := range t.Channels {
			switch {
			case !names.ValidChannel(c.Name) || names.Ephemeral(c.Name):
				return fmt.Errorf("%q cannot name a channel of topic %s in definitions; nothing was changed", c.Name, t.Name)
			case channels[c.Name]:
				return fmt.Errorf("channel %s of topic %s is defined twice; nothing was changed", c.Name, t.Name)
			}
			channels[c.Name] = true
			if c.Settings != nil {
				if err := c.Settings.Validate(); err != nil {
					return fmt.Errorf("channel %s of topic %s: %w", c.Name, t.Name, err)
				}
			}
		}
	}
	return nil
}

// changesTo returns the steps that make is into want, in the order in which they are to be done. It is an error if want
// cannot be reached. Without prune nothing is deleted, and never what the engine made for something that stays.
func changesTo(is, want *definitions, prune bool) ([]definitionChange, error) {
	var out []definitionChange
	had := map[string]*topicDefinition{}
	for i := range is.Topics {
		had[is.Topics[i].Name] = &is.Topics[i]
	}
	dead := deadLetters(is, want)
	for i := range want.Topics {
		w := &want.Topics[i]
		h := had[w.Name]
		if h == nil {
			h = &topicDefinition{
				Name: w.Name, Partitions: w.Partitions, Replicas: w.Replicas, Settings: new(meta.TopicSettings),
			}
			out = append(out, definitionChange{Action: "create-topic", Topic: w.Name, topic: w})
		}
		if w.Partitions != 0 && w.Partitions < h.Partitions {
			return nil, fmt.Errorf("topic %s has %s and cannot have %d: none can be taken away, since each holds "+
				"messages; nothing was changed", w.Name, cli.Counted(h.Partitions, "partition"), w.Partitions)
		}
		if err := replicasFit(h, w, is.nodes); err != nil {
			return nil, err
		}
		if err := limitsFit(h, w, is.nodes); err != nil {
			return nil, err
		}
		topic, channels := topicChanges(h, w), channelChanges(h, w, prune, dead[w.Name])
		if w.Partitions > h.Partitions { // a channel's max_in_flight is raised before the topic has more partitions than that
			topic, channels = channels, topic
		}
		out = append(append(out, topic...), channels...)
		delete(had, w.Name)
	}
	for i := range is.Topics {
		if name := is.Topics[i].Name; prune && had[name] != nil && !dead[name] {
			out = append(out, definitionChange{Action: "delete-topic", Topic: name, Detail: "with all its messages"})
		}
	}
	return out, nil
}

// replicasFit says why a topic cannot have the replicas that w wants, so that nothing is changed before a node refuses
// it. nodes is how many nodes there are.
func replicasFit(h, w *topicDefinition, nodes int) error {
	replicas := cmp.Or(w.Replicas, h.Replicas)
	if nodes == 1 {
		replicas = max(replicas, 1)
	}
	switch {
	case w.Replicas > nodes:
		verb := "are"
		if nodes == 1 {
			verb = "is"
		}
		return fmt.Errorf("topic %s cannot have %d replicas, because there %s %s; nothing was changed",
			w.Name, w.Replicas, verb, cli.Counted(nodes, "node"))
	case w.Settings != nil && replicas != 0 && w.Settings.MinISR > replicas:
		return fmt.Errorf("topic %s cannot have a min_isr of %d with %s; nothing was changed", w.Name,
			w.Settings.MinISR, cli.Counted(replicas, "replica"))
	}
	return nil
}

// limitsFit says why channels of a cluster's topic cannot have the limits that w wants; see node.Channel.Configure.
func limitsFit(h, w *topicDefinition, nodes int) error {
	partitions := max(h.Partitions, w.Partitions)
	for _, c := range w.Channels {
		if nodes > 1 && c.Settings != nil && c.Settings.LacksShares(partitions) {
			return fmt.Errorf("channel %s of topic %s cannot have a max_in_flight of %d with %s, because the limit is divided "+
				"among them; nothing was changed", c.Name, w.Name, c.Settings.MaxInFlight, cli.Counted(partitions, "partition"))
		}
	}
	return nil
}

// topicChanges returns the changes of a topic itself. Replicas are added before its settings ask for them, and taken
// away after the settings do not any more.
func topicChanges(h, w *topicDefinition) (out []definitionChange) {
	if detail := topicDiff(h, w); detail != "" {
		out = append(out, definitionChange{Action: "set-topic", Topic: w.Name, Detail: detail, topic: w})
	}
	if w.Replicas == 0 || w.Replicas == h.Replicas || w.Replicas == 1 && h.Replicas == 0 {
		return out
	}
	c := definitionChange{
		Action: "set-replicas", Topic: w.Name, Detail: fmt.Sprintf("%d -> %d", h.Replicas, w.Replicas), topic: w,
	}
	if w.Replicas > h.Replicas {
		return slices.Insert(out, 0, c)
	}
	return append(out, c)
}

// deadLetters returns the topics that may have dead letters of channels that stay: by the settings that they have, and
// by those that they get. With such a topic, those of its channels stay, too.
func deadLetters(is, want *definitions) map[string]bool {
	has, dead := map[string]*topicDefinition{}, map[string]bool{}
	for i := range is.Topics {
		has[is.Topics[i].Name] = &is.Topics[i]
	}
	var keep func(topic string, channels []channelDefinition)
	keep = func(topic string, channels []channelDefinition) {
		for _, c := range channels {
			name := topic + fold.DeadLetterSuffix
			if c.Settings != nil {
				name = cmp.Or(c.Settings.DeadLetter, name)
			}
			if t := has[name]; t != nil && !dead[name] {
				dead[name] = true
				keep(name, t.Channels)
			}
		}
	}
	for i := range want.Topics {
		t := &want.Topics[i]
		keep(t.Name, t.Channels)
		if h := has[t.Name]; h != nil {
			keep(t.Name, slices.DeleteFunc(slices.Clone(h.Channels), func(c channelDefinition) bool {
				return !slices.ContainsFunc(t.Channels, func(w channelDefinition) bool { return w.Name == c.Name })
			}))
		}
	}
	return dead
}

// channelChanges returns the changes of a topic's channels. dead says that the topic may have dead letters: then the
// channel from which they are sent back stays.
func channelChanges(h, w *topicDefinition, prune, dead bool) (out []definitionChange) {
	had := map[string]*fold.ChannelSettings{}
	for i := range h.Channels {
		had[h.Channels[i].Name] = h.Channels[i].Settings
	}
	for i := range w.Channels {
		c := &w.Channels[i]
		set, exists := had[c.Name]
		if !exists {
			out = append(out, definitionChange{Action: "create-channel", Topic: w.Name, Channel: c.Name, channel: c})
			set = new(fold.ChannelSettings)
		}
		if c.Settings != nil {
			if detail := fieldDiff(set, c.Settings); detail != "" {
				out = append(out, definitionChange{
					Action: "set-channel", Topic: w.Name, Channel: c.Name, Detail: detail, channel: c,
				})
			}
		}
		delete(had, c.Name)
	}
	for i := range h.Channels {
		name := h.Channels[i].Name
		if _, left := had[name]; left && prune && !(dead && name == topic.RedriveChannel) {
			out = append(out, definitionChange{
				Action: "delete-channel", Topic: w.Name, Channel: name, Detail: "with its backlog",
			})
		}
	}
	return out
}

func topicDiff(h, w *topicDefinition) string {
	var parts []string
	if w.Settings != nil {
		if d := fieldDiff(h.Settings, w.Settings); d != "" {
			parts = append(parts, d)
		}
	}
	if w.Partitions > h.Partitions {
		parts = append(parts, fmt.Sprintf("partitions %d -> %d", h.Partitions, w.Partitions))
	}
	return strings.Join(parts, ", ")
}

// fieldDiff lists the fields of two settings that differ, as their JSON has them.
func fieldDiff(is, want any) string {
	fields := func(v any) (out map[string]any) {
		data, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(data, &out)
		}
		cli.Must(err)
		for _, name := range []string{"version", "partitions"} {
			delete(out, name)
		}
		for name, e := range out { // an empty value is the default, written or not
			if e == nil || e == "" || e == "synced" || e == "reject" || reflect.ValueOf(e).IsZero() {
				delete(out, name)
			}
		}
		return out
	}
	a, b := fields(is), fields(want)
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !reflect.DeepEqual(a[name], b[name]) {
			from, _ := json.Marshal(a[name])
			to, _ := json.Marshal(b[name])
			out = append(out, fmt.Sprintf("%s %s -> %s", name, from, to))
		}
	}
	return strings.Join(out, ", ")
}
