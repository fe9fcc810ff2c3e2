package serve

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/cmd/engine/internal/settings"
	"penstock/internal/server"
)

// nsqdFlag is one flag of nsqd 1.3.0, which is also a key in nsqd's configuration file. It is a flag.Value that
// remembers the value it was given.
type nsqdFlag struct {
	name    string
	cfg     string // the key in the file; "": the name with underscores
	check   func(string) error
	toml    func(any) (string, error)
	targets []nsqdTarget // none: the flag has no effect here

	isBool, isList bool

	said   string
	given  bool // the value comes from the command line
	source string
}

// nsqdTarget is a setting that a flag sets. convert translates the value into the setting's notation. It is nil if both
// have the same.
type nsqdTarget struct {
	setting string
	convert func(string) (string, error)
}

func to(setting string) nsqdTarget { return nsqdTarget{setting, nil} }

// nsqdFlags returns all flags of nsqd except -version and -config. A flag whose setting this program does not have
// counts as one without effect.
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
		durationFlag("max-req-timeout", to("max-req-timeout"), to("max-defer")), // nsqd also limits DPUB with it
		intFlag("max-body-size", to("max-body-bytes")),

		durationFlag("max-heartbeat-interval", to("max-heartbeat-interval")),
		intFlag("max-rdy-count", to("max-rdy-count")),
		intFlag("max-output-buffer-size", to("max-output-buffer-bytes")),
		durationFlag("max-output-buffer-timeout", to("max-output-buffer-timeout")),
		durationFlag("min-output-buffer-timeout", nsqdTarget{"min-output-buffer-timeout", leastMillisecond}),
		durationFlag("output-buffer-timeout"), // output is never delayed
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
			name: "tls-required", check: func(s string) error { _, err := tlsRequired(s); return err }, toml: settings.TOMLText,
			targets: []nsqdTarget{{"tls-required", tlsRequired}}, isBool: true,
		},
		textFlag("tls-min-version", nsqdTarget{"tls-min-version", tlsVersion}),

		boolFlag("deflate", to("deflate")),
		intFlag("max-deflate-level", to("max-deflate-level")),
		boolFlag("snappy", to("snappy")),
	}
}

func textFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	return &nsqdFlag{name: name, targets: targets, check: func(string) error { return nil }, toml: settings.TOMLText}
}

func boolFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	return &nsqdFlag{name: name, targets: targets, check: parses(strconv.ParseBool), toml: settings.TOMLText, isBool: true}
}

func intFlag(name string, targets ...nsqdTarget) *nsqdFlag {
	// Like nsqd, accept 0x10 and 1_000 as numbers.
	return &nsqdFlag{name: name, toml: settings.TOMLText, check: parses(parseNSQDInt), targets: decimals(targets)}
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

// usage returns the flag's help text. known are the settings of this program.
func (f *nsqdFlag) usage(known []*settings.Setting) string {
	for _, t := range f.targets {
		if slices.ContainsFunc(known, func(s *settings.Setting) bool { return s.Name == t.setting }) {
			return "sets --" + t.setting + " of penstock serve"
		}
	}
	return "accepted, but has no effect"
}

// String, Set and IsBoolFlag implement flag.Value.
func (f *nsqdFlag) String() string   { return "" }
func (f *nsqdFlag) IsBoolFlag() bool { return f.isBool }

// Set sets the value from the command line. A list flag may be given several times.
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

// apply sets the settings to which the flag corresponds, and reports whether there is one.
func (f *nsqdFlag) apply(c *settings.Config) (used bool, err error) {
	for _, t := range f.targets {
		s := c.Named(t.setting)
		if s == nil {
			continue
		}
		v := f.said
		if t.convert != nil {
			if v, err = t.convert(v); err != nil {
				return false, fmt.Errorf("%s: %w", f.source, err)
			}
		}
		if err := c.Set(s, v, f.source); err != nil {
			return false, err
		}
		used = true
	}
	return used, nil
}

func parses[T any](parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		if _, err := parse(s); err != nil {
			return errors.New("parse error") // in the words of package flag
		}
		return nil
	}
}

func parseNSQDInt(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) }

// decimals makes the targets convert a number to the decimal notation of our settings.
func decimals(targets []nsqdTarget) []nsqdTarget {
	for i := range targets {
		targets[i].convert = func(s string) (string, error) {
			n, err := parseNSQDInt(s)
			return strconv.FormatInt(n, 10), err
		}
	}
	return targets
}

// tomlDuration converts a duration. As in nsqd, a whole number means milliseconds.
func tomlDuration(v any) (string, error) {
	if ms, ok := v.(int64); ok {
		return (time.Duration(ms) * time.Millisecond).String(), nil
	}
	return settings.TOMLText(v)
}

func tomlList(v any) (string, error) {
	list, ok := v.([]any)
	if !ok {
		return settings.TOMLText(v)
	}
	var parts []string
	for _, v := range list {
		if f, ok := v.(float64); ok {
			parts = append(parts, strconv.FormatFloat(f, 'g', -1, 64))
			continue
		}
		s, err := settings.TOMLText(v)
		if err != nil {
			return "", err
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ","), nil
}

// leastMillisecond converts a lower bound in milliseconds. nsqd rounds it down, so less than 1 ms means no bound there;
// clients ask in whole milliseconds.
func leastMillisecond(s string) (string, error) {
	d, err := time.ParseDuration(s)
	return max(d.Truncate(time.Millisecond), time.Millisecond).String(), err
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
		return server.Off, nil
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

// tlsVersion converts a minimum TLS version. Versions older than 1.2 are not supported, so they become 1.2.
func tlsVersion(s string) (string, error) {
	switch s = strings.ToLower(s); s {
	case "tls1.3":
		return "1.3", nil
	case "", "ssl3.0", "tls1.0", "tls1.1", "tls1.2":
		return "1.2", nil
	}
	return "", fmt.Errorf("unknown tlsVersionOption %q", s)
}
