package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"penstock/nsq"
)

// nsqdFlag is one flag of nsqd 1.3.0, which is a key of its configuration file as well. It is a flag.Value that
// remembers what was said.
type nsqdFlag struct {
	name    string
	cfg     string // the key; "": the name with underscores
	check   func(string) error
	toml    func(any) (string, error)
	targets []nsqdTarget // none: no meaning here

	isBool, isList bool

	said   string
	given  bool // on the command line
	source string
}

// nsqdTarget is the setting that a flag becomes, and how its value is written there; nil: as it is.
type nsqdTarget struct {
	setting string
	convert func(string) (string, error)
}

func to(setting string) nsqdTarget { return nsqdTarget{setting, nil} }

// nsqdFlags is nsqd's whole command line but -version and -config. A flag that becomes a setting of which this
// program has none yet counts as one without a meaning.
func nsqdFlags() []*nsqdFlag {
	return []*nsqdFlag{
		textFlag("log-level", nsqdTarget{"log-level", nsqdLevel}),
		textFlag("log-prefix"),
		boolFlag("verbose"),
		intFlag("node-id").named("id"),
		boolFlag("worker-id"),
		textFlag("https-address", nsqdTarget{"https-address", optionalAddress}),
		textFlag("http-address", nsqdTarget{"http-address", optionalAddress}),
		textFlag("tcp-address", nsqdTarget{"nsq-address", tcpAddress}),
		listFlag("auth-http-address", to("auth-http-address")).named("auth_http_addresses"),
		textFlag("broadcast-address", to("broadcast-address")),
		intFlag("broadcast-tcp-port", to("broadcast-tcp-port")),
		intFlag("broadcast-http-port", to("broadcast-http-port")),
		listFlag("lookupd-tcp-address", to("lookupd-tcp-address")).named("nsqlookupd_tcp_addresses"),
		durationFlag("http-client-connect-timeout"),
		durationFlag("http-client-request-timeout", to("auth-http-timeout")),

		textFlag("data-path", nsqdTarget{"data-path", currentDirectory}),
		intFlag("mem-queue-size"),
		intFlag("max-bytes-per-file"),
		intFlag("sync-every"),
		durationFlag("sync-timeout"),
		intFlag("queue-scan-worker-pool-max"),
		intFlag("queue-scan-selection-count"),

		durationFlag("msg-timeout", to("msg-timeout")),
		durationFlag("max-msg-timeout", to("max-msg-timeout")),
		intFlag("max-msg-size", to("max-message-bytes")),
		durationFlag("max-req-timeout", to("max-req-timeout"), to("max-defer")), // nsqd bounds DPUB with it as well
		intFlag("max-body-size", to("max-body-bytes")),

		durationFlag("max-heartbeat-interval", to("max-heartbeat-interval")),
		intFlag("max-rdy-count", to("max-rdy-count")),
		intFlag("max-output-buffer-size", to("max-output-buffer-bytes")),
		durationFlag("max-output-buffer-timeout", to("max-output-buffer-timeout")),
		durationFlag("min-output-buffer-timeout"), // nothing is delayed
		durationFlag("output-buffer-timeout"),
		intFlag("max-channel-consumers", to("max-consumers")),

		textFlag("statsd-address", to("statsd-address")),
		durationFlag("statsd-interval", to("statsd-interval")),
		boolFlag("statsd-mem-stats", to("statsd-mem-stats")),
		textFlag("statsd-prefix", to("statsd-prefix")),
		intFlag("statsd-udp-packet-size", to("statsd-udp-packet-size")),
		boolFlag("statsd-exclude-ephemeral", to("statsd-exclude-ephemeral")),

		percentileFlag("e2e-processing-latency-percentile", to("e2e-processing-latency-percentile")).named(
			"e2e_processing_latency_percentiles"),
		durationFlag("e2e-processing-latency-window-time", to("e2e-processing-latency-window-time")),

		textFlag("tls-cert", to("tls-cert")),
		textFlag("tls-key", to("tls-key")),
		textFlag("tls-client-auth-policy", to("tls-client-auth-policy")),
		textFlag("tls-root-ca-file", to("tls-root-ca-file")),
		{
			name: "tls-required", check: func(s string) error { _, err := tlsRequired(s); return err }, toml: tomlText,
			targets: []nsqdTarget{{"tls-required", tlsRequired}}, isBool: true,
		},
		textFlag("tls-min-version", nsqdTarget{"tls-min-version", tlsVersion}),

		boolFlag("deflate", to("deflate")),
		intFlag("max-deflate-level", to("max-deflate-level")),
		boolFlag("snappy", to("snappy")),
	}
}

func textFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	return &nsqdFlag{name: name, targets: targets, check: func(string) error { return nil }, toml: tomlText}
}

func boolFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	return &nsqdFlag{name: name, targets: targets, check: parses(strconv.ParseBool), toml: tomlText, isBool: true}
}

func intFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	// As nsqd: 0x10 and 1_000 are numbers too.
	return &nsqdFlag{name: name, toml: tomlText, check: parses(parseNSQDInt), targets: decimals(targets)}
}

func durationFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	return &nsqdFlag{name: name, targets: targets, check: parses(time.ParseDuration), toml: tomlDuration}
}

func listFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	return &nsqdFlag{name: name, targets: targets, check: func(string) error { return nil }, toml: tomlList, isList: true}
}

func percentileFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	check := func(s string) error {
		for part := range strings.SplitSeq(s, ",") {
			if _, err := strconv.ParseFloat(part, 64); err != nil {
				return errors.New("parse error")
			}
		}
		return nil
	}
	return &nsqdFlag{name: name, targets: targets, check: check, toml: tomlList, isList: true}
}

func (f *nsqdFlag) named(cfg string) *nsqdFlag {
	f.cfg = cfg
	return f
}

func (f *nsqdFlag) key() string {
	if f.cfg != "" {
		return f.cfg
	}
	return strings.ReplaceAll(f.name, "-", "_")
}

func (f *nsqdFlag) usage() string {
	if len(f.targets) == 0 {
		return "accepted, without effect"
	}
	return "as --" + f.targets[0].setting + " of engine serve"
}

// String, Set and IsBoolFlag make it a flag.Value.
func (f *nsqdFlag) String() string   { return "" }
func (f *nsqdFlag) IsBoolFlag() bool { return f.isBool }

// Set takes one value from the command line.
func (f *nsqdFlag) Set(s string) error {
	if err := f.check(s); err != nil {
		return err
	}
	if f.isList && f.given {
		s = f.said + "," + s
	}
	f.said, f.given, f.source = s, true, "--"+f.name
	return nil
}

func (f *nsqdFlag) setTOML(v any) error {
	s, err := f.toml(v)
	if err == nil {
		err = f.check(s)
	}
	f.said = s
	return err
}

// apply sets the settings that the flag becomes, and says whether there is one.
func (f *nsqdFlag) apply(c *config) (used bool, err error) {
	for _, t := range f.targets {
		s := c.named(t.setting)
		if s == nil {
			continue
		}
		v := f.said
		if t.convert != nil {
			if v, err = t.convert(v); err != nil {
				return false, fmt.Errorf("%s: %w", f.source, err)
			}
		}
		if err := c.set(s, v, f.source); err != nil {
			return false, err
		}
		used = true
	}
	return used, nil
}

func parses[T any](parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		if _, err := parse(s); err != nil {
			return errors.New("parse error") // as package flag says it
		}
		return nil
	}
}

func parseNSQDInt(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) }

// decimals writes a number in the notation of our settings.
func decimals(targets []nsqdTarget) []nsqdTarget {
	for i := range targets {
		targets[i].convert = func(s string) (string, error) {
			n, err := parseNSQDInt(s)
			return strconv.FormatInt(n, 10), err
		}
	}
	return targets
}

// tomlDuration: nsqd takes a whole number for milliseconds.
func tomlDuration(v any) (string, error) {
	if ms, ok := v.(int64); ok {
		return (time.Duration(ms) * time.Millisecond).String(), nil
	}
	return tomlText(v)
}

func tomlList(v any) (string, error) {
	list, ok := v.([]any)
	if !ok {
		return tomlText(v)
	}
	var parts []string
	for _, v := range list {
		if f, ok := v.(float64); ok {
			parts = append(parts, strconv.FormatFloat(f, 'g', -1, 64))
			continue
		}
		s, err := tomlText(v)
		if err != nil {
			return "", err
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ","), nil
}

func nsqdLevel(s string) (string, error) {
	switch s = strings.ToLower(s); s {
	case "debug", "info", "warn", "error":
		return s, nil
	case "fatal":
		return "error", nil
	}
	return "", fmt.Errorf("invalid log level '%s' (debug, info, warn, error, fatal)", s)
}

func currentDirectory(s string) (string, error) {
	if s == "" {
		return ".", nil
	}
	return s, nil
}

func tcpAddress(s string) (string, error) {
	if s == "" {
		return ":0", nil
	}
	if _, _, err := net.SplitHostPort(s); err != nil {
		return "", fmt.Errorf("%q is not HOST:PORT, and Unix sockets cannot be listened on", s)
	}
	return s, nil
}

func optionalAddress(s string) (string, error) {
	if s == "" {
		return nsq.Off, nil
	}
	return tcpAddress(s)
}

func tlsRequired(s string) (string, error) {
	if s = strings.ToLower(s); s == "tcp-https" {
		return s, nil
	}
	required, err := strconv.ParseBool(s)
	return strconv.FormatBool(required), err
}

// tlsVersion: what is older than 1.2 is not spoken, so that 1.2 is the oldest then.
func tlsVersion(s string) (string, error) {
	switch s = strings.ToLower(s); s {
	case "tls1.3":
		return "1.3", nil
	case "", "ssl3.0", "tls1.0", "tls1.1", "tls1.2":
		return "1.2", nil
	}
	return "", fmt.Errorf("unknown tlsVersionOption %q", s)
}
