// Lane b of bench/throughput: a Go consumer as a good user of go-nsq and go-redis writes it.
//
// One handler call and one EVALSHA per event, in as many goroutines as -handlers says; a message is finished when
// Redis has answered (go-nsq does that when the handler returns nil) and requeued when it has not. Failures are
// written to standard error, one line each. TERM ends it after what is in flight.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/nsqio/go-nsq"
	"github.com/redis/go-redis/v9"
)

const recordTTLSeconds = "3600"

type event struct {
	User struct {
		ID string `json:"id"`
	} `json:"user"`
}

type store struct {
	client *redis.Client
	sha    string
}

func (s *store) HandleMessage(message *nsq.Message) error {
	var decoded event
	if err := json.Unmarshal(message.Body, &decoded); err != nil {
		return err
	}
	timeline := "user:" + decoded.User.ID
	id := string(message.ID[:])
	keys := []string{"r:" + timeline + ":" + id, "t:" + timeline, "waiting", "ready", "l:" + timeline}
	seconds := strconv.FormatFloat(float64(message.Timestamp)/1e9, 'f', 6, 64)
	return s.client.EvalSha(
		context.Background(), s.sha, keys, id, message.Body, seconds, recordTTLSeconds, timeline,
	).Err()
}

func run() error {
	nsqdAddress := flag.String("nsqd", "", "host:port of nsqd's TCP side")
	redisAddress := flag.String("redis", "", "host:port of Redis")
	topic := flag.String("topic", "", "topic to read")
	channel := flag.String("channel", "", "channel to read")
	scriptPath := flag.String("script", "", "the Lua script that is called once per event")
	maxInFlight := flag.Int("max-in-flight", 2500, "messages in flight at most")
	handlers := flag.Int("handlers", 256, "concurrent handlers")
	flag.Parse()

	script, err := os.ReadFile(*scriptPath)
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: *redisAddress, PoolSize: *handlers})
	defer client.Close()
	sha, err := client.ScriptLoad(context.Background(), string(script)).Result()
	if err != nil {
		return err
	}

	config := nsq.NewConfig()
	config.MaxInFlight = *maxInFlight
	consumer, err := nsq.NewConsumer(*topic, *channel, config)
	if err != nil {
		return err
	}
	consumer.SetLogger(log.New(os.Stderr, "", log.LstdFlags), nsq.LogLevelWarning)
	consumer.AddConcurrentHandlers(&store{client: client, sha: sha}, *handlers)
	if err := consumer.ConnectToNSQD(*nsqdAddress); err != nil {
		return err
	}

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	consumer.Stop()
	select {
	case <-consumer.StopChan:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("still busy 10 s after the signal")
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}
