package jsonbody

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

type color string

func (c *color) UnmarshalText(p []byte) error {
	if string(p) != "red" {
		return errors.New("that is no color")
	}
	*c = color(p)
	return nil
}

// Embedded is exported, as the settings are that the bodies of topics embed.
type Embedded struct {
	Count uint8 `json:"count"`
}

func TestExplain(t *testing.T) {
	for body, want := range map[string]string{
		``:                        "it is empty",
		`{"small":`:               "it ends in the middle",
		`[]`:                      "it is a list, and must be an object",
		`7`:                       "it is a number, and must be an object",
		`{"small":"x"}`:           "small is a string, and must be a whole number",
		`{"small":200}`:           "small is 200, and must be a whole number from -128 to 127",
		`{"small":1.5}`:           "small is 1.5, and must be a whole number from -128 to 127",
		`{"count":true}`:          "count is true or false, and must be a whole number of 0 or more",
		`{"count":-1}`:            "count is -1, and must be a whole number from 0 to 255",
		`{"large":-1}`:            "large is -1, and must be a whole number from 0 to 18446744073709551615",
		`{"on":"yes"}`:            "on is a string, and must be true or false",
		`{"name":{}}`:             "name is an object, and must be a string",
		`{"color":3}`:             "color is a number, and must be a string",
		`{"color":"blue"}`:        "that is no color",
		`{"rate":"1"}`:            "rate is a string, and must be a number",
		`{"rules":{}}`:            "rules is an object, and must be a list",
		`{"rules":[{"match":1}]}`: "rules.match is a number, and must be a string",
		`{"smal":1}`:              `unknown field "smal"`,
		`{"small":x}`:             "it is no valid JSON at byte 10: invalid character 'x' looking for beginning of value",
	} {
		var into struct {
			Embedded
			Small int8    `json:"small"`
			Large uint64  `json:"large"`
			On    *bool   `json:"on"`
			Name  string  `json:"name"`
			Color color   `json:"color"`
			Rate  float64 `json:"rate"`
			Rules []struct {
				Match string `json:"match"`
			} `json:"rules"`
		}
		d := json.NewDecoder(strings.NewReader(body))
		d.DisallowUnknownFields()
		if got := Explain(d.Decode(&into)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
