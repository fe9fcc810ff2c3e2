// Gonsq publishes three orders and consumes them, with go-nsq.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/nsqio/go-nsq"
)

var (
	nodes   = flag.String("nodes", "127.0.0.1:4150", "NSQ addresses of nodes, separated by commas")
	lookups = flag.String("lookups", "127.0.0.1:4161", "lookup addresses of nodes, separated by commas")
	ca      = flag.String("ca", "", "PEM file with the authority of the nodes' certificates; turns TLS on")
	token   = flag.String("token-file", "", "file with the token to log in with")
)

func main() {
	flag.Parse()
	config, err := newConfig()
	if err != nil {
		log.Fatal(err)
	}
	for i := range 3 {
		order := fmt.Sprintf("order %d", i+1)
		if err := publish(config, "orders", order); err != nil {
			log.Fatal(err)
		}
		fmt.Println("stored:", order)
	}
	if err := consume(config, "orders", "billing", 3); err != nil {
		log.Fatal(err)
	}
}

func newConfig() (*nsq.Config, error) {
	config := nsq.NewConfig()
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", *ca)
		}
		config.TlsV1 = true
		config.TlsConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	}
	if *token != "" {
		secret, err := os.ReadFile(*token)
		if err != nil {
			return nil, err
		}
		config.AuthSecret = strings.TrimSpace(string(secret))
	}
	return config, nil
}

// publish tries one node after the other. Any node takes a message for any topic. If the first attempt failed without
// an answer, the message may be stored twice: consumers have to bear that.
func publish(config *nsq.Config, topic, body string) error {
	var errs []error
	for _, address := range strings.Split(*nodes, ",") {
		producer, err := nsq.NewProducer(address, config) // a real program keeps it
		if err != nil {
			return err
		}
		producer.SetLoggerLevel(nsq.LogLevelError)
		err = producer.Publish(topic, []byte(body)) // nil: it is on stable storage
		producer.Stop()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// consume prints so many messages of a channel.
func consume(config *nsq.Config, topic, channel string, count int) error {
	consumer, err := nsq.NewConsumer(topic, channel, config)
	if err != nil {
		return err
	}
	consumer.SetLoggerLevel(nsq.LogLevelError)
	bodies := make(chan string)
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		bodies <- string(m.Body)
		return nil // the message is finished; an error requeues it
	}))
	if err := consumer.ConnectToNSQLookupds(strings.Split(*lookups, ",")); err != nil {
		return err
	}
	for range count {
		fmt.Println("consumed:", <-bodies)
	}
	consumer.Stop() // what was finished is sent before StopChan is closed
	<-consumer.StopChan
	return nil
}
