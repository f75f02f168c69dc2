// Verifies posts of nsqdigest by the rules of Standard Webhooks. Go 1.18 or newer, standard library only.
//
// In a receiver: Verify(secrets, r.Header.Get, body, time.Now()), before anything else looks at the body. To try a post
// that you saved:
//
//	HOOK_SECRET=whsec_… go run verify.go WEBHOOK-ID WEBHOOK-TIMESTAMP WEBHOOK-SIGNATURE < body
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

const tolerance = 5 * time.Minute

// ErrNotVerified: answer 401 and do nothing else. nsqdigest tries again, so a wrong secret can still be corrected.
var ErrNotVerified = errors.New("not verified")

// Verify returns the digest's id, or an error.
//
// secrets: each "whsec_…" that is valid now. header: the value of a header, by its name. body: the bytes as they came;
// JSON that was parsed and written again has other bytes.
func Verify(secrets []string, header func(string) string, body []byte, now time.Time) (string, error) {
	id, timestamp, signatures := header("webhook-id"), header("webhook-timestamp"), header("webhook-signature")
	if id == "" || timestamp == "" || signatures == "" {
		return "", fmt.Errorf("%w: a header is missing", ErrNotVerified)
	}
	seconds, err := strconv.ParseUint(timestamp, 10, 40)
	if err != nil {
		return "", fmt.Errorf("%w: webhook-timestamp is not a number of seconds", ErrNotVerified)
	}
	if away := now.Sub(time.Unix(int64(seconds), 0)); away > tolerance || away < -tolerance {
		return "", fmt.Errorf("%w: webhook-timestamp is too far from this clock", ErrNotVerified)
	}
	for _, secret := range secrets {
		key, err := keyOf(secret)
		if err != nil {
			return "", err
		}
		mac := hmac.New(sha256.New, key)
		io.WriteString(mac, id+"."+timestamp+".")
		mac.Write(body)
		expected := []byte(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		for _, signature := range strings.Split(signatures, " ") {
			// Of other versions than v1 this file knows nothing: they neither help nor harm.
			if strings.HasPrefix(signature, "v1,") && hmac.Equal([]byte(signature[3:]), expected) {
				return id, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no signature was made with a secret that is known here", ErrNotVerified)
}

func keyOf(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil || len(key) < 24 || !strings.HasPrefix(secret, "whsec_") { // with an empty key everybody could sign
		return nil, errors.New("a secret is whsec_ and the base64 of 24 to 64 bytes")
	}
	return key, nil
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: verify WEBHOOK-ID WEBHOOK-TIMESTAMP WEBHOOK-SIGNATURE < body")
		os.Exit(2)
	}
	given := map[string]string{
		"webhook-id": os.Args[1], "webhook-timestamp": os.Args[2], "webhook-signature": os.Args[3],
	}
	body, err := io.ReadAll(os.Stdin)
	if err == nil {
		var id string
		header := func(name string) string { return given[name] }
		if id, err = Verify(strings.Fields(os.Getenv("HOOK_SECRET")), header, body, time.Now()); err == nil {
			fmt.Println("verified:", id)
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
