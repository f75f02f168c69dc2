"""`python -m nsqdigest`: the same as `nsqdigest`, for environments without the script on PATH."""

from nsqdigest.cli import main

if __name__ == "__main__":
    main()
